// The products of a linear layer on an NVIDIA GPU, with inputs rounded to 8 bits. Fp8Scaling (step_kernels.h) says
// which numbers share a scale: all of a tensor, which are then E4M3 or, for gradients of outputs, E5M2; or blocks of
// them, all E4M3. Scales never leave the GPU. Sums are float32.
#pragma once

#include <ATen/ATen.h>

#include <cstddef>
#include <cstdint>

#include "millrace/engine/ops/common/step_kernels.h"
#include "millrace/engine/parameters/weight.h"
#include "millrace/engine/quantized/fp8_numbers.h"

namespace millrace::engine::ops::cuda {

/// An 8-bit matrix as cuBLAS multiplies it: the elements that are summed lie side by side.
struct Fp8Matrix {
  at::Tensor codes;   ///< [lines, summed], of bytes
  at::Tensor decode;  ///< the factors, as fp8_kernels.h lays them out
  Fp8Format format = Fp8Format::kE4m3;
  Fp8Grain grain = Fp8Grain::kTensor;
  bool defined() const { return codes.defined(); }
};

/// The passes of one layer, each at most once and in the order of the functions here, but for the last two. Results are
/// those of ops::LinearPass. All functions only start work of the GPU.
class Fp8Linear {
 public:
  /// Returns whether the products of x with this weight can be made in 8 bits: both are bfloat16 on a GPU, and the
  /// numbers of tokens, inputs and outputs are multiples of 16.
  static bool Takes(const at::Tensor& x, const Weight& weight);
  /// `layer`: in `largest`, which is for Fp8Scaling::kDelayed; borrowed.
  /// REQUIRES: Takes().
  Fp8Linear(Weight weight, std::size_t layer, Fp8Scaling scaling, LargestValues* largest);

  /// `keeps_input`: keeps what the weight's gradient needs of x, one byte an element.
  at::Tensor Forward(const at::Tensor& x, const at::Tensor& bias, bool keeps_input);
  bool has_input() const { return input_.defined(); }
  at::Tensor InputGradient(const at::Tensor& dout);
  /// Adds to the weight's gradient. `x` may be undefined if has_input().
  void AddGradient(const at::Tensor& x, const at::Tensor& dout);

 private:
  /// A matrix, its transpose, or both.
  struct Casts {
    Fp8Matrix rows, transposed;
  };
  enum class Which { kRows, kTransposed, kBoth };
  /// The numbers that one scale for all of a tensor follows from.
  struct Largest {
    at::Tensor value;
    at::Tensor seen;  ///< undefined: `value` is no amax
  };

  /// `counts`: what is cast belongs to a step that is learnt from.
  Largest LargestOf(const at::Tensor& x, Fp8Tensor tensor, bool counts) const;
  Casts Cast(const at::Tensor& x, Fp8Tensor tensor, Which which, const Largest& largest) const;
  Casts Cast(const at::Tensor& x, Fp8Tensor tensor, Which which, bool counts = true) const;
  void CastGradient(const at::Tensor& dout);

  const Weight weight_;
  const std::size_t layer_;
  const Fp8Scaling scaling_;
  LargestValues* const largest_;  ///< null, except for delayed scaling
  Largest of_weight_;  ///< the weight does not change between the passes, so the backward pass needs no other
  Fp8Matrix input_;    ///< the transpose of x, until the weight's gradient is made
  Fp8Matrix gradient_, gradient_transposed_;  ///< of the output, each until its product is made
};

}  // namespace millrace::engine::ops::cuda
