// The product with a weight matrix.
#pragma once

#include <ATen/ATen.h>

#include <cstddef>
#include <memory>
#include <utility>

#include "millrace/engine/layers/adapted_linear.h"
#include "millrace/engine/layers/forward_context.h"
#include "millrace/engine/layers/low_rank.h"
#include "millrace/engine/ops/divided_linear.h"
#include "millrace/engine/ops/linear.h"
#include "millrace/engine/parameters/parameter_buffer.h"

namespace millrace::engine {

/// The division of a linear layer [out, in] among tensor-parallel ranks.
enum class LinearDivision {
  kNone,     ///< every rank computes all of it
  kColumns,  ///< a rank has some of the outputs: it sees all inputs, and its outputs stay with it
  kRows,     ///< a rank has some of the inputs: its products are summed over the ranks
};

/// x [N, in] → [N, out], or a rank's part of them. A value type; LayerFactory makes it.
class Linear {
 public:
  Linear() = default;
  /// `number`: among the model's LinearLayers. `codes`: in place of the weight; may be null.
  Linear(std::size_t number, WeightHandle weight, WeightHandle bias, LinearDivision division = LinearDivision::kNone,
         TensorRanks ranks = {}, LowRankAdapters adapters = {}, std::shared_ptr<const QuantizedRows> codes = {})
      : number_(number),
        weight_(weight),
        bias_(bias),
        division_(division),
        ranks_(ranks),
        adapters_(std::move(adapters)),
        codes_(std::move(codes)) {}

  at::Tensor Forward(const ops::LayerInput& x, const ForwardContext& context) const {
    if (!context.adapted_rows.empty()) {
      return AdaptedLinear(x.value, {.matrix = *weight_, .bias = *bias_, .codes = codes_}, number_,
                           context.adapted_rows);
    }
    const ops::LowRankUpdate update = adapters_.For(context);
    if (division_ == LinearDivision::kNone) return ops::Linear(x, {*weight_, *bias_, update, codes_, number_});
    if (division_ == LinearDivision::kColumns)
      return ops::ColumnLinear(x, {*weight_, *bias_, update, codes_, number_}, ranks_);
    const at::Tensor sum = ops::RowLinear(x, {*weight_, {}, update, codes_, number_}, ranks_);
    return bias_->defined() ? ops::AddBias(sum, *bias_) : sum;  // once, not by every rank
  }
  /// Computes with codes in place of the weight from now on, in forward passes.
  void Use(std::shared_ptr<const QuantizedRows> codes) { codes_ = std::move(codes); }
  const LowRankAdapters& adapters() const { return adapters_; }
  const Weight& weight() const { return *weight_; }  ///< undefined if the layer was made with codes
  const Weight& bias() const { return *bias_; }      ///< undefined if there is none

 private:
  std::size_t number_ = 0;
  WeightHandle weight_, bias_;
  LinearDivision division_ = LinearDivision::kNone;
  TensorRanks ranks_;
  LowRankAdapters adapters_;
  std::shared_ptr<const QuantizedRows> codes_;
};

}  // namespace millrace::engine
