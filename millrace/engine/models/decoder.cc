#include "millrace/engine/models/decoder.h"

#include "millrace/engine/ops/cross_entropy.h"
#include "millrace/engine/ops/exchange/exchange.h"

namespace millrace::engine {

at::Tensor Decoder::Loss(const Stream& x, const ModelBatch& batch, const ForwardContext&) const {
  const at::Tensor hidden = ops::EnterDividedLayer(norm_.Forward(x.residual, x.delta).out, ranks());
  return ops::DividedCrossEntropy(hidden, head_.weight(), head_.bias(), batch.labels.reshape({-1}),
                                  config().sizes().vocab_size, ranks(), batch.loss,
                                  batch.predictions != nullptr ? &batch.predictions->tokens : nullptr);
}

at::Tensor Decoder::Scores(const Stream& x, const ForwardContext& context, const at::Tensor& rows) const {
  at::Tensor hidden = norm_.Forward(x.residual, x.delta).out;
  if (rows.defined()) hidden = hidden.index_select(0, rows);
  return head_.Forward(hidden, context);
}

}  // namespace millrace::engine
