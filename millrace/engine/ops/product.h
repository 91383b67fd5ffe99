// Products of matrices, made as the thread's KernelScope says, and how a backward pass adds to the gradients of
// weights.
#pragma once

#include <ATen/ATen.h>

#include "millrace/engine/ops/cpu/gemm.h"
#include "millrace/engine/ops/dispatch.h"
#include "millrace/engine/parameters/weight.h"

namespace millrace::engine::ops {

/// Returns the table of an op whose kernels multiply matrices. On a processor that does not multiply bfloat16, the
/// kernel of float32 takes tensors of bfloat16, too: it computes with copies of them, and rounds its results.
template <class Function>
KernelTable<Function> OnCpuByProducts(const char* op, Function* reference, Function* float32, Function* bfloat16) {
  return OnCpu(op, reference, float32, cpu::MultipliesBf16() ? bfloat16 : float32);
}

/// Returns a [m, k] · b [k, n], plus `bias` [n] in each row if that is defined. All are of one type and on one device.
/// A transpose (`w.t()`) is read in place.
at::Tensor Product(const at::Tensor& a, const at::Tensor& b, const at::Tensor& bias = {});

/// c = a · b, for a dense c [m, n] of their type. In float32, plus `bias` in each row if that is defined.
void ProductInto(const at::Tensor& c, const at::Tensor& a, const at::Tensor& b, const at::Tensor& bias = {});

/// c += scale · a · b, for a c [m, n] in float32 with dense rows, such as some columns of a matrix. Products of
/// bfloat16 are added without rounding to bfloat16.
void AddProduct(const at::Tensor& c, const at::Tensor& a, const at::Tensor& b, float scale = 1);

/// Adds gradient · scale to the weight's gradient, or returns it to autograd. Does nothing if the gradient is undefined
/// or the weight is frozen.
at::Tensor AddOrReturn(const Weight& weight, const at::Tensor& gradient, float scale = 1);
/// The same for a gradient that is the sum of rows: of a bias.
at::Tensor AddOrReturnRowSum(const Weight& weight, const at::Tensor& rows);

}  // namespace millrace::engine::ops
