// What decoders share: a norm and a LM head that predict the next token.
#pragma once

#include <ATen/ATen.h>

#include "millrace/engine/layers/linear.h"
#include "millrace/engine/layers/norm.h"
#include "millrace/engine/models/model.h"

namespace millrace::engine {

/// A family derives it, and makes `norm_` and `head_` in MakeHead().
class Decoder : public Model {
 public:
  using Model::Model;

 protected:
  at::Tensor Loss(const Stream& x, const ModelBatch& batch, const ForwardContext& context) const final;
  at::Tensor Scores(const Stream& x, const ForwardContext& context, const at::Tensor& rows) const final;

  Norm norm_;
  Linear head_;
};

}  // namespace millrace::engine
