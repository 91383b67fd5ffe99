#include "millrace/engine/models/decoder.h"

#include "millrace/engine/device/host_memory.h"
#include "millrace/engine/errors.h"
#include "millrace/engine/models/preference.h"
#include "millrace/engine/ops/cross_entropy.h"
#include "millrace/engine/ops/exchange.h"
#include "millrace/engine/ops/quantized_product.h"

namespace millrace::engine {
namespace {

/// Returns the place of the last token of the first sequence of each row, int64 [rows].
at::Tensor LastTokens(const ops::Sequences& sequences, std::int64_t rows) {
  const std::int64_t length = sequences.tokens() / rows;
  at::Tensor last = at::empty({rows}, at::kLong);
  auto* place = last.data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < sequences.count(); ++i) {
    const std::int64_t begin = sequences.begin(i);
    if (begin % length == 0) place[begin / length] = begin + sequences.length(i) - 1;
  }
  return last;
}

}  // namespace

void Decoder::QuantizeHead() {
  if (!head_.weight().defined()) return;
  const at::Tensor weight = head_.weight().value.detach();
  // A GPU's kernels read codes for all the rows of a step only if these are not in float32.
  if (weight.is_cpu() || weight.scalar_type() != at::kFloat) head_.Use(ops::InInt8(weight.cpu()));
}

at::Tensor Decoder::HeadInput(const Stream& x) const {
  const at::Tensor normed = norm_.Forward(x.residual, x.delta).out;
  return logit_scale_ == 1 ? normed : normed * logit_scale_;
}

at::Tensor Decoder::Loss(const Stream& x, const ModelBatch& batch, const ForwardContext& context) const {
  if (config().predicts_rows()) {
    const at::Tensor hidden = ranks().divides_tokens() ? ops::JoinRows(x.Sum(), ranks()) : x.Sum();
    const at::Tensor last = ToDevice(LastTokens(context.sequences, batch.inputs.size(0)), hidden.device());
    return ops::LinearCrossEntropy(norm_.Forward(hidden.index_select(0, last), {}).out, head_.weight(), head_.bias(),
                                   batch.row_labels, batch.loss,
                                   batch.predictions != nullptr ? &batch.predictions->rows : nullptr) *
           batch.row_loss_weight;
  }
  const at::Tensor hidden = ops::EnterDividedLayer(HeadInput(x), ranks());
  if (batch.preferences != nullptr) {
    if (!head_.adapters().modules.empty()) {
      throw ErrorException(
          Error(Code::kUnsupported, "the loss of preferences has no gradient for an adapter of the head"));
    }
    return PreferenceLossSum(ops::TokenCrossEntropies(hidden, head_.weight(), head_.bias(), batch.labels.reshape({-1}),
                                                      config().sizes().vocab_size, ranks(), logit_softcap_),
                             batch);
  }
  return ops::DividedCrossEntropy(hidden, head_.weight(), head_.bias(), batch.labels.reshape({-1}),
                                  config().sizes().vocab_size, ranks(), batch.loss,
                                  batch.predictions != nullptr ? &batch.predictions->tokens : nullptr,
                                  head_.adapters().ForHead(hidden, context), logit_softcap_);
}

at::Tensor Decoder::Scores(const Stream& x, const ForwardContext& context, const at::Tensor& rows) const {
  const auto wanted = [&](const at::Tensor& hidden) { return rows.defined() ? hidden.index_select(0, rows) : hidden; };
  if (config().predicts_rows()) {
    const at::Tensor hidden = norm_.Forward(x.residual, x.delta).out;
    const at::Tensor last = ToDevice(LastTokens(context.sequences, context.sequences.count()), hidden.device());
    return head_.Forward(wanted(hidden.index_select(0, last)), context);
  }
  return ops::SoftCapped(head_.Forward(wanted(HeadInput(x)), context), logit_softcap_);
}

}  // namespace millrace::engine
