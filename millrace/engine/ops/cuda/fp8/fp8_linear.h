// The products of a linear layer on an NVIDIA GPU, with inputs rounded to 8 bits (NVIDIA's Transformer Engine names
// this current scaling). Values are E4M3 and gradients of outputs E5M2; each tensor has one scale, from its largest
// absolute value, which never leaves the GPU. Sums are float32.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

#include "millrace/engine/ops/cuda/fp8/rounding.h"
#include "millrace/engine/parameters/weight.h"

namespace millrace::engine::ops::cuda {

/// An 8-bit matrix as cuBLAS multiplies it: the elements that are summed lie side by side.
struct Fp8Matrix {
  at::Tensor codes;  ///< [lines, summed], of bytes
  at::Tensor scale;  ///< of one Fp8ScaleMemory
  engine::cuda::Fp8Format format = engine::cuda::Fp8Format::kE4m3;
  bool defined() const { return codes.defined(); }
};

/// The passes of one layer, each at most once and in the order of the functions here, but for the last two. Results are
/// those of ops::LinearPass. All functions only start work of the GPU.
class Fp8Linear {
 public:
  /// Returns whether the products of x with this weight can be made in 8 bits: both are bfloat16 on a GPU, and the
  /// numbers of tokens, inputs and outputs are multiples of 16.
  static bool Takes(const at::Tensor& x, const Weight& weight);
  /// REQUIRES: Takes().
  explicit Fp8Linear(Weight weight) : weight_(std::move(weight)) {}

  /// `keeps_input`: keeps what the weight's gradient needs of x, one byte an element.
  at::Tensor Forward(const at::Tensor& x, const at::Tensor& bias, bool keeps_input);
  bool has_input() const { return input_.defined(); }
  at::Tensor InputGradient(const at::Tensor& dout);
  /// Adds to the weight's gradient. `x` may be undefined if has_input().
  void AddGradient(const at::Tensor& x, const at::Tensor& dout);

 private:
  void CastGradient(const at::Tensor& dout);

  const Weight weight_;
  at::Tensor weight_scale_;  ///< the weight does not change between the passes, so the backward pass needs no other
  Fp8Matrix input_;          ///< the transpose of x, until the weight's gradient is made
  Fp8Matrix gradient_, gradient_transposed_;  ///< of the output, each until its product is made
};

}  // namespace millrace::engine::ops::cuda
