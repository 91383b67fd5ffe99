// Products of matrices on an NVIDIA GPU, by cuBLAS.
#pragma once

#include <ATen/ATen.h>

namespace millrace::engine::ops::cuda {

/// As ops::Product(). Few rows with a weight's transpose are multiplied by a kernel that is as fast as memory.
at::Tensor Product(const at::Tensor& a, const at::Tensor& b, const at::Tensor& bias);

/// c += scale · a · b, as ops::AddProduct(). The rows or the columns of a and b are dense.
void AddProduct(const at::Tensor& c, const at::Tensor& a, const at::Tensor& b, float scale);

/// c += a · b, and sums += the sums of a's rows [rows of a], in float32, if one product was chosen for both. Returns
/// whether it was; otherwise nothing has changed.
bool AddProductWithSums(const at::Tensor& c, const at::Tensor& a, const at::Tensor& b, const at::Tensor& sums);

/// c = a · b for a c in float32. The products of other types are not rounded to them. Otherwise as AddProduct().
void SetProduct(const at::Tensor& c, const at::Tensor& a, const at::Tensor& b);

}  // namespace millrace::engine::ops::cuda
