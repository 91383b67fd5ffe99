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
  using Model::Model;
  at::Tensor LossSum(const ModelBatch& batch) final;
  at::Tensor Logits(const at::Tensor& inputs, KvCache* cache) final;
  bool generates() const final { return true; }

 protected:
  /// Returns the last norm's output [rows · length, hidden] for int64 inputs [rows, length].
  virtual at::Tensor Hidden(const at::Tensor& inputs, const ForwardContext& context) const = 0;

  Linear head_;
};

}  // namespace millrace::engine
