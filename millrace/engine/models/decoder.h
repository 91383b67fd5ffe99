// What decoders share: the tokens' embeddings go through blocks, and a head predicts the next token.
#pragma once

#include <ATen/ATen.h>

#include "millrace/engine/layers/forward_context.h"
#include "millrace/engine/layers/linear.h"
#include "millrace/engine/models/model.h"

namespace millrace::engine {

/// A family derives it, makes its layers in the constructor, and says what one forward pass is.
class Decoder : public Model {
 public:
  using Model::LossSum;
  Decoder(std::shared_ptr<const ModelConfig> config, TensorRanks ranks) : Model(std::move(config)), ranks_(ranks) {}
  at::Tensor LossSum(const ModelBatch& batch) final;
  at::Tensor Logits(const at::Tensor& inputs, KvCache* cache) final;

 protected:
  /// Returns the last norm's output [rows · length, hidden] for int64 inputs [rows, length]; with sequence parallelism
  /// this rank's rows of it.
  virtual at::Tensor Hidden(const at::Tensor& inputs, const ForwardContext& context) const = 0;

  const TensorRanks ranks_;
  Linear head_;
};

}  // namespace millrace::engine
