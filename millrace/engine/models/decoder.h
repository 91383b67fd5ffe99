// The base of decoders: a norm and a head, which predict the next token, or a class of each row from its last token.
#pragma once

#include <ATen/ATen.h>

#include "millrace/engine/layers/linear.h"
#include "millrace/engine/layers/norm.h"
#include "millrace/engine/models/model.h"

namespace millrace::engine {

/// A family derives it, and makes `norm_` and `head_` in MakeHead(). If its configuration predicts rows, they see whole
/// tokens (LayerFactory::SeeWholeTokens) and the head is not divided.
class Decoder : public Model {
 public:
  using Model::Model;
  void QuantizeHead() final;

 protected:
  /// The class of a row follows from its last token that is no padding: the last one of the row's first sequence.
  at::Tensor Loss(const Stream& x, const ModelBatch& batch, const ForwardContext& context) const final;
  at::Tensor Final(const Stream& x) const final { return norm_.Forward(x.residual, x.delta).out; }
  at::Tensor Scores(const Stream& x, const ForwardContext& context, const at::Tensor& rows) const final;

  Norm norm_;
  Linear head_;
  // Set by the family's constructor. Logits are logit_scale_ times the head's product. Then they are capped, if
  // logit_softcap_ is not 0 (ops::SoftCapped). Scores of classes are neither.
  double logit_scale_ = 1, logit_softcap_ = 0;

 private:
  /// Returns the hidden states that the head for tokens multiplies. With one factor less there, each way to compute
  /// logits has it.
  at::Tensor HeadInput(const Stream& x) const;
};

}  // namespace millrace::engine
