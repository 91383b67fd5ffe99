#include "millrace/train/evaluator.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <span>

#include "millrace/data/loader.h"
#include "millrace/engine/errors.h"
#include "millrace/train/reporting/report.h"

namespace millrace::train {
namespace {

/// Of what is read while the sequences are collected; it is free again afterwards.
constexpr std::uint64_t kCollectingBytes = 256 * kMiB;

/// Samples [first, last) of an epoch. Neighbours share documents, so few documents are tokenized on two ranks.
struct SampleRange {
  std::uint64_t first = 0, last = 0;
};

Result<std::vector<std::unique_ptr<MicroBatch>>> ReadRows(std::shared_ptr<data::Dataset> dataset, SampleRange range,
                                                          at::Device device, const Logger& log) {
  std::vector<std::unique_ptr<MicroBatch>> rows;
  if (range.first == range.last) return rows;
  MemoryBudget budget(kCollectingBytes);
  const data::LoaderState start{.samples = range.first, .fingerprint = dataset->fingerprint()};
  const data::Loader::Options options{.global_batch = 1, .threads = dataset->options().threads};
  const auto loader = MR_TRY(data::Loader::Start(std::move(dataset), budget, options, start, log));
  while (rows.size() < range.last - range.first) {
    data::Batch row = MR_TRY(loader->Next());
    rows.push_back(std::make_unique<MicroBatch>(std::move(row), device));
  }
  return rows;
}

/// Returns a row that passes through the model as all others do and adds nothing to any sum.
data::Batch RowWithoutLabels(const data::DatasetOptions& options) {
  const auto length = static_cast<std::size_t>(options.sequence_length);
  data::Batch row{.rows = 1,
                  .sequence_length = options.sequence_length,
                  .inputs = std::vector<data::TokenId>(length),
                  .labels = std::vector<data::TokenId>(length, data::kIgnoreLabel),
                  .lengths = {options.sequence_length}};
  if (options.objective == data::Objective::kCausalLm) return row;
  if (options.IsForBert()) row.segments.resize(length);
  row.row_labels = {data::kIgnoreLabel};
  return row;
}

}  // namespace

Result<std::unique_ptr<Evaluator>> Evaluator::Open(object::Connection& connection,
                                                   std::shared_ptr<const tokenizer::Tokenizer> tokenizer,
                                                   const data::DatasetOptions& options, const engine::DpoOptions& dpo,
                                                   std::uint64_t samples, at::Device device, const RankLayout& layout,
                                                   const Logger& log) {
  std::shared_ptr<data::Dataset> dataset;
  const auto open = [&]() -> Status {
    dataset = MR_TRY(data::Dataset::Open(connection, std::move(tokenizer), options, log));
    return {};
  };
  engine::Collective& world = layout.world();
  if (world.rank() == 0) MR_TRY(open());
  MR_TRY(world.Barrier());
  if (world.rank() != 0) MR_TRY(open());
  samples = std::min(samples, dataset->samples_per_epoch());
  if (samples == 0) {
    return Fail(Code::kInvalidArgument,
                "evaluation has no sequences: raise data.split.held_out, or name other records in eval.sources");
  }
  const auto ranks = static_cast<std::uint64_t>(layout.data_ranks());
  const auto rank = static_cast<std::uint64_t>(layout.data_rank());
  std::vector<std::unique_ptr<MicroBatch>> rows = MR_TRY(ReadRows(
      std::move(dataset), {.first = samples * rank / ranks, .last = samples * (rank + 1) / ranks}, device, log));
  const std::uint64_t most = (samples + ranks - 1) / ranks;
  while (rows.size() < most) rows.push_back(std::make_unique<MicroBatch>(RowWithoutLabels(options), device));
  std::unique_ptr<Evaluator> made(new Evaluator(std::move(rows), samples, layout));
  made->compares_ = options.objective == data::Objective::kDpo;
  if (made->compares_) {
    for (const auto& row : made->rows_) row->SetPairs(dpo);
  }
  MR_TRY(made->WeighRows());
  return made;
}

Status Evaluator::WeighRows() {
  LabelCounts mine;
  for (const auto& row : rows_) {
    mine.tokens += row->data.loss_tokens;
    mine.rows += row->data.loss_rows;
  }
  const std::int64_t counts = layout_.counts_samples() ? 1 : 0;
  const at::Tensor sums = at::tensor(
      {counts * static_cast<std::int64_t>(mine.tokens), counts * static_cast<std::int64_t>(mine.rows)}, at::kLong);
  MR_TRY(layout_.world().AllReduce(sums));
  const auto* all = sums.data_ptr<std::int64_t>();
  labels_ = {static_cast<std::uint64_t>(all[0]), static_cast<std::uint64_t>(all[1])};
  for (const auto& row : rows_) row->batch.row_loss_weight = labels_.row_weight();
  return {};
}

Status Evaluator::RunReference(engine::PipelineRunner& passes) {
  std::vector<engine::ModelBatch> batches;
  for (const auto& row : rows_) batches.push_back(row->ReferenceBatch());
  MR_TRY(passes.Evaluate(batches));
  has_reference_ = true;
  return {};
}

Result<EvalReport> Evaluator::Evaluate(engine::PipelineRunner& passes) {
  if (compares_ && !has_reference_) MR_TRY(RunReference(passes));
  engine::Predictions predictions;
  std::vector<engine::ModelBatch> batches;
  for (const auto& row : rows_) {
    row->preferences.sums = {};
    batches.push_back(row->batch);
    batches.back().predictions = &predictions;
  }
  const engine::PipelineSums passed = MR_TRY(passes.Evaluate(batches));
  const double counts = layout_.counts_samples() ? 1 : 0;
  engine::PreferenceSums mine;
  for (const auto& row : rows_) mine.Add(row->preferences.sums.of);
  std::vector<double> numbers = {passed.loss, static_cast<double>(predictions.tokens),
                                 static_cast<double>(predictions.rows)};
  const std::size_t first = numbers.size();
  std::ranges::copy(mine.of, std::back_inserter(numbers));
  const at::Tensor sums = at::tensor(numbers, at::kDouble) * counts;
  MR_TRY(layout_.world().AllReduce(sums));
  const std::span<const double> all(sums.data_ptr<double>(), numbers.size());
  engine::PreferenceSums preferences;
  preferences.Add(all.subspan(first));
  const auto share = [](double some, std::uint64_t of) {
    return some / static_cast<double>(std::max<std::uint64_t>(1, of));
  };
  const double of_rows = share(all[2], labels_.rows);
  return EvalReport{.loss = share(all[0], labels_.denominator()),
                    .samples = samples_,
                    .labels = labels_.denominator(),
                    .accuracy = labels_.tokens > 0 ? share(all[1], labels_.tokens) : of_rows,
                    .row_accuracy = of_rows,
                    .has_row_accuracy = labels_.tokens > 0 && labels_.rows > 0,
                    .preferences = compares_ ? preferences.Means() : std::map<std::string, double>{}};
}

}  // namespace millrace::train
