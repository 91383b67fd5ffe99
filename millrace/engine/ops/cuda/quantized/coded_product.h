// Quantized matrices on the GPU: their elements, and products with them.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

#include "millrace/engine/quantized/quantized_matrix.h"

namespace millrace::engine::ops::cuda {

/// Returns rows `first` … of a matrix, dense, of a type and on a GPU as `options` say. The first call copies the codes
/// of the matrices to the GPU, where they stay as long as the matrices do.
at::Tensor Dequantized(const QuantizedRows& matrix, std::int64_t first, std::int64_t count,
                       const at::TensorOptions& options);

/// Returns x [N, in] · matrix^T [in, out], plus `bias` [out] in each row if that is defined, by kernels that read codes
/// (coded_kernels.h): [N, out], of x's type. Undefined if these don't take it: it has many rows, or boxes that begin or
/// end within vectors. As Dequantized(), the first call copies the codes.
at::Tensor ProductOfCodes(const at::Tensor& x, const QuantizedRows& matrix, const at::Tensor& bias);

}  // namespace millrace::engine::ops::cuda
