#include "millrace/engine/models/decoder.h"

#include "millrace/engine/ops/cross_entropy.h"
#include "millrace/engine/ops/exchange/exchange.h"

namespace millrace::engine {

at::Tensor Decoder::LossSum(const ModelBatch& batch) {
  const at::Tensor& inputs = batch.inputs;
  ForwardContext context{.sequences = batch.documents.empty() ? ops::Sequences::Even(inputs.size(0), inputs.size(1))
                                                              : ops::Sequences::Cut(batch.documents, inputs.numel()),
                         .dropout = batch.dropout};
  if (ranks_.divides_tokens()) context.first_token = ranks_.rank() * (inputs.numel() / ranks_.size());
  const at::Tensor hidden = ops::EnterDividedLayer(Hidden(inputs, context), ranks_);
  return ops::DividedCrossEntropy(hidden, head_.weight(), head_.bias(), batch.labels.reshape({-1}),
                                  config().sizes().vocab_size, ranks_, batch.loss);
}

at::Tensor Decoder::Logits(const at::Tensor& inputs, KvCache* cache) {
  TORCH_CHECK(ranks_.size() == 1, "a model that is divided among ranks does not generate text");
  const at::NoGradGuard no_grad;
  const std::int64_t rows = inputs.size(0), length = inputs.size(1);
  const ForwardContext context{.sequences = ops::Sequences::Even(rows, length, cache != nullptr ? cache->length() : 0),
                               .cache = cache};
  at::Tensor hidden = Hidden(inputs, context).view({rows, length, -1});
  if (cache != nullptr) {
    cache->Advance(length);
    hidden = hidden.narrow(1, length - 1, 1);
  }
  const at::Tensor logits = head_.Forward(hidden.reshape({-1, hidden.size(2)}));
  return logits.to(at::kFloat).view({rows, hidden.size(1), logits.size(1)});
}

}  // namespace millrace::engine
