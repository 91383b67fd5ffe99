// Products with weights.
#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "millrace/engine/ops/cuda/quantized/fp8_linear.h"
#include "millrace/engine/ops/low_rank.h"
#include "millrace/engine/ops/quantized_product.h"
#include "millrace/engine/parameters/weight.h"
#include "millrace/engine/quantized/quantized_matrix.h"

namespace millrace::engine::ops {

/// The input of a layer. A backward pass needs it again. If `again` is there, the pass computes it with that, to the
/// same bits, and it is not kept in between (selective recomputation, Korthikanti et al. 2022).
struct LayerInput {
  LayerInput(at::Tensor tensor, std::function<at::Tensor()> compute_again = {})  // NOLINT(google-explicit-constructor)
      : value(std::move(tensor)), again(std::move(compute_again)) {}
  at::Tensor value;
  std::function<at::Tensor()> again;
};

/// The weights that x is multiplied with.
struct LinearWeights {
  Weight matrix = {};         ///< [out, in]
  Weight bias = {};           ///< [out]; may be undefined
  LowRankUpdate update = {};  ///< added to the matrix
  /// The matrix [out, in], if it is frozen in fewer bits. Then `matrix` is undefined.
  std::shared_ptr<const QuantizedRows> codes = {};
  /// The layer's number among the model's linear layers. If it has one, products with the matrix are made in FP8 where
  /// the step asks for it: StepKernels.
  std::optional<std::size_t> layer = {};
  /// Returns whether a fused op leaves none of the gradients to autograd.
  bool takes_gradients() const { return !matrix.autograd_adds() && !bias.autograd_adds(); }
  /// Returns whether a backward pass needs x again.
  bool needs_input() const { return matrix.gradient.defined() || update.learns(); }
  /// Returns whether a pass over `tokens` tokens adds the update to the numbers that codes stand for, while these are
  /// in the processor's cache. The update's own products read and write all outputs, and all gradients of inputs, so
  /// that is less work if the tokens are more than the inputs. Without codes, a copy of the matrix would cost as much
  /// as it saves. Not where tokens have the same bits whatever others there are.
  bool adds_update_first(std::int64_t tokens) const;
  /// Returns all tensors that may require grad, with x as the first.
  std::vector<at::Tensor> InputsWith(const at::Tensor& x) const;
};

/// Returns the product of x [N, in] and the transpose of the matrix, plus the update's outputs, plus the bias: [N,
/// out].
at::Tensor Linear(const LayerInput& x, const LinearWeights& weights);

/// Sums a tensor over the ranks that divide a layer's inputs, in place.
using SumInputParts = std::function<void(const at::Tensor&)>;

/// The passes of Linear() without autograd, for ops that exchange between them. An object is for one forward and one
/// backward pass. With magnitudes, it keeps the products that these scale, [N, out].
class LinearPass {
 public:
  /// `sum`: where ranks divide the inputs, for the norms of rows. Empty: this rank has all inputs.
  explicit LinearPass(LinearWeights weights, SumInputParts sum = {})
      : weights_(std::move(weights)), sum_(std::move(sum)), update_(weights_.update) {}
  const LinearWeights& weights() const { return weights_; }
  /// Returns the output [N, out]. With `keeps_input`, the object may keep what the matrix's gradient needs of x:
  /// needs_input() says whether it does.
  at::Tensor Forward(const at::Tensor& x, bool keeps_input = false);
  /// Returns the gradient of x, from that of the output [N, out]: [N, in], in memory of its own.
  at::Tensor InputGradient(const at::Tensor& dout);
  /// Adds to the gradients of the weights that have one. x may be undefined unless needs_input().
  void AddGradients(const at::Tensor& x, const at::Tensor& dout);
  /// Returns whether AddGradients() needs x. Known after Forward().
  bool needs_input() const;
  /// With magnitudes: returns |V| of each row [out] in float32. Of a row of zeros, whose product is zero, it is the
  /// least number that divides.
  at::Tensor RowNorms() const;

 private:
  using Module = LowRankUpdate::Module;
  AddToRows AddsUpdate() const;
  at::Tensor MatrixProduct(const at::Tensor& x, const at::Tensor& bias, bool keeps_input);
  at::Tensor ProductWithMatrix(const at::Tensor& dout);
  void AddMatrixGradient(const at::Tensor& x, const at::Tensor& dout);
  bool AddBothGradients(const at::Tensor& x, const at::Tensor& dout);
  /// Returns whether the magnitudes scale products of other inputs than the weight's own.
  bool drops() const { return !weights_.update.is_matrix(); }
  at::Tensor ModuleProduct(const Module& module, const at::Tensor& x) const;
  at::Tensor ModuleProductWithTranspose(const Module& module, const at::Tensor& dout) const;
  at::Tensor Scale(const at::Tensor& x, at::Tensor out, bool has_update);
  const at::Tensor& ScaledGradient(const at::Tensor& dout);
  void AddMagnitudeGradients(const at::Tensor& dout);

  const LinearWeights weights_;
  const SumInputParts sum_;
  LowRankPass update_;
  std::optional<cuda::Fp8Linear> fp8_;  ///< the products with the matrix, if they are made in FP8
  // With magnitudes.
  at::Tensor norms_, factors_;  ///< [out] float32: |V|, and m / |V|; a factor is 1 where there is no magnitude
  at::Tensor products_;         ///< [N, out]: V · drop(x); of outputs without a magnitude, what they are or 0
  at::Tensor scaled_gradient_;  ///< undefined until it is needed
};

/// Returns x [N, columns] plus a bias [columns].
at::Tensor AddBias(const at::Tensor& x, const Weight& bias);

}  // namespace millrace::engine::ops
