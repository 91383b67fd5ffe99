#include "millrace/engine/models/decoder.h"

#include "millrace/engine/ops/cross_entropy.h"

namespace millrace::engine {

at::Tensor Decoder::LossSum(const ModelBatch& batch) {
  const at::Tensor& inputs = batch.inputs;
  const ForwardContext context{.sequences = batch.documents.empty()
                                                ? ops::Sequences::Even(inputs.size(0), inputs.size(1))
                                                : ops::Sequences::Cut(batch.documents, inputs.numel()),
                               .dropout = batch.dropout};
  return ops::LinearCrossEntropy(Hidden(inputs, context), head_.weight(), head_.bias(), batch.labels.reshape({-1}));
}

at::Tensor Decoder::Logits(const at::Tensor& inputs, KvCache* cache) {
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
