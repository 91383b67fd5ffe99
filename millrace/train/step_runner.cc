#include "millrace/train/step_runner.h"

#include "millrace/trace/recorder.h"
#include "millrace/train/reporting/stopwatch.h"

namespace millrace::train {
namespace {

/// Summed over a batch's tokens: what attention spans of the row, or of the document in it, that a token is in.
double ContextOf(const data::Batch& batch, const plan::ModelShape& shape) {
  double sum = 0;
  const double row = batch.sequence_length;
  if (batch.cu_seqlens.empty()) sum = batch.rows * row * shape.AttendedLength(row);
  for (std::size_t i = 1; i < batch.cu_seqlens.size(); ++i) {
    const double document = batch.cu_seqlens[i] - batch.cu_seqlens[i - 1];
    sum += document * shape.AttendedLength(document);
  }
  return sum;
}

}  // namespace

Result<std::shared_ptr<MicroBatch>> StepRunner::Load(std::uint64_t step, StepReport& report) {
  const trace::Span span("load a micro-batch", trace::Category::kData);
  const Stopwatch waiting(*options_.clock);
  const data::Loader::Stats before = loader_.stats();
  data::Batch next = MR_TRY(loader_.Next());
  auto loaded = std::make_shared<MicroBatch>(std::move(next), options_.device);
  report.data_wait_s += waiting.Seconds();
  const data::Loader::Stats after = loader_.stats();
  for (int s = 0; s < data::kLoadStages; ++s) {
    report.data_wait_on_s[s] += SecondsOf(after.waited_on[s] - before.waited_on[s]);
  }
  loaded->batch.dropout = engine::ops::DropoutRows{.seed = options_.seed,
                                                   .step = step,
                                                   .first_sample = loaded->data.first_sample,
                                                   .row_length = loaded->data.sequence_length};
  loaded->batch.loss = options_.loss;
  loaded->batch.neftune_alpha = options_.neftune_alpha;
  if (options_.data.objective == data::Objective::kDpo) loaded->SetPairs(options_.dpo);
  return loaded;
}

/// The weight depends on the labels of the whole step, so all ranks' batches are there before the first pass.
/// plan/traffic.cc counts this exchange.
Result<double> StepRunner::RowWeight(const std::vector<std::shared_ptr<MicroBatch>>& loaded, StepReport& report) const {
  LabelCounts mine;
  for (const auto& each : loaded) {
    mine.tokens += each->data.loss_tokens;
    mine.rows += each->data.loss_rows;
  }
  const bool counts = layout_.counts_samples();
  const at::Tensor sums = at::tensor(
      {counts ? static_cast<std::int64_t>(mine.tokens) : 0, counts ? static_cast<std::int64_t>(mine.rows) : 0},
      at::kLong);
  const Stopwatch waiting(*options_.clock);
  MR_TRY(layout_.world().AllReduce(sums));
  report.comm_wait_s += waiting.Seconds();
  const auto* all = sums.data_ptr<std::int64_t>();
  return LabelCounts{static_cast<std::uint64_t>(all[0]), static_cast<std::uint64_t>(all[1])}.row_weight();
}

/// Computes the reference's log-probabilities of all pairs of the step. Its passes come before those that learn, so
/// that every stage of a pipeline makes them in the same order.
Status StepRunner::RunReference(const std::vector<std::shared_ptr<MicroBatch>>& loaded, StepReport& report) {
  std::vector<engine::ModelBatch> batches;
  for (const auto& micro : loaded) batches.push_back(micro->ReferenceBatch());
  const engine::PipelineSums passed = MR_TRY(passes_.Evaluate(batches));
  report.comm_wait_s += SecondsOf(passed.waited);
  return {};
}

Result<PassSums> StepRunner::Run(std::uint64_t step, StepReport& report, double loss_factor) {
  PassSums sums;
  std::vector<std::shared_ptr<MicroBatch>> loaded;
  double row_weight = 1;
  const bool weighs_rows = options_.data.LearnsTokens() && options_.data.LearnsRows();
  const bool compares = options_.data.objective == data::Objective::kDpo;
  if (weighs_rows || compares) {
    for (int i = 0; i < micro_batches_; ++i) loaded.push_back(MR_TRY(Load(step, report)));
  }
  if (weighs_rows) row_weight = MR_TRY(RowWeight(loaded, report));
  if (compares) MR_TRY(RunReference(loaded, report));
  exchange_.BeginStep(micro_batches_);
  const auto next = [&](int i) -> Result<std::shared_ptr<const engine::ModelBatch>> {
    const auto at = static_cast<std::size_t>(i);
    const std::shared_ptr<MicroBatch> micro = at < loaded.size() ? loaded[at] : MR_TRY(Load(step, report));
    micro->batch.row_loss_weight = row_weight;
    sums.labels.tokens += micro->data.loss_tokens;
    sums.labels.rows += micro->data.loss_rows;
    sums.context += ContextOf(micro->data, shape_);
    return std::shared_ptr<const engine::ModelBatch>(micro, &micro->batch);
  };
  const engine::PipelineSums passed = MR_TRY(passes_.Train(next, loss_factor));
  report.comm_wait_s += SecondsOf(passed.waited);
  {
    const trace::Span span("finish the gradients", trace::Category::kCommunication);
    report.comm_wait_s += SecondsOf(MR_TRY(exchange_.Finish()));
  }
  if (!layout_.counts_samples()) return PassSums{};
  sums.loss = passed.loss;
  for (const auto& micro : loaded) sums.preferences.Add(micro->preferences.sums.of);
  return sums;
}

}  // namespace millrace::train
