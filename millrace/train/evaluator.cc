#include "millrace/train/evaluator.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "millrace/data/loader.h"
#include "millrace/engine/errors.h"
#include "millrace/train/report.h"

namespace millrace::train {
namespace {

/// Of what is read while the sequences are collected; it is free again afterwards.
constexpr std::uint64_t kCollectingBytes = 256 * kMiB;

}  // namespace

Json EvalReport::ToJson() const {
  Json json = {{"event", "eval"},    {"step", step},     {"loss", NineDigits(loss)},
               {"samples", samples}, {"labels", labels}, {"seconds", seconds}};
  if (tells_perplexity) json["perplexity"] = NineDigits(std::exp(loss));
  return json;
}

std::string EvalReport::ToText() const {
  const std::string perplexity = tells_perplexity ? fmt::format("  perplexity {:.2f}", std::exp(loss)) : "";
  return fmt::format("eval after step {}  loss {:.4f}{}  ({} held-out samples, {:.1f} s)", step, loss, perplexity,
                     samples, seconds);
}

Result<std::unique_ptr<Evaluator>> Evaluator::Open(object::Connection& connection,
                                                   std::shared_ptr<const tokenizer::Tokenizer> tokenizer,
                                                   data::DatasetOptions options, std::uint64_t samples,
                                                   const RankLayout& layout, const Logger& log) {
  options.split.part = data::SplitPart::kHeldOut;
  std::shared_ptr<data::Dataset> dataset;
  const auto open = [&]() -> Status {
    dataset = MR_TRY(data::Dataset::Open(connection, std::move(tokenizer), options, log));
    return {};
  };
  engine::Collective& world = layout.world();
  if (world.rank() == 0) MR_TRY(open());
  MR_TRY(world.Barrier());
  if (world.rank() != 0) MR_TRY(open());
  const auto ranks = static_cast<std::uint64_t>(layout.data_ranks());
  const std::uint64_t share = std::min(samples, dataset->samples_per_epoch()) / ranks;
  if (share == 0) {
    return Fail(Code::kInvalidArgument,
                "the held-out part has {} sequences, eval takes at least one for each of {} ranks: raise "
                "data.split.held_out or eval.samples",
                dataset->samples_per_epoch(), ranks);
  }
  MemoryBudget budget(kCollectingBytes);
  const data::Loader::Options loading{.rank = layout.data_rank(),
                                      .ranks = layout.data_ranks(),
                                      .global_batch = layout.data_ranks(),
                                      .threads = options.threads};
  const auto loader = MR_TRY(data::Loader::Start(dataset, budget, loading, {}, log));
  std::vector<data::Batch> rows;
  while (rows.size() < share) rows.push_back(MR_TRY(loader->Next()));
  return std::unique_ptr<Evaluator>(new Evaluator(std::move(rows), layout));
}

Result<EvalReport> Evaluator::Evaluate(engine::Model& model) const {
  double loss = 0;
  std::uint64_t labels = 0;
  MR_TRY(engine::CatchTorch("evaluation", [&] {
    const at::NoGradGuard no_gradients;
    for (data::Batch& row : rows_) {
      const auto tensor = [&](std::vector<data::TokenId>& ids) {
        return at::from_blob(ids.data(), {row.rows, row.sequence_length}, at::kInt).to(at::kLong);
      };
      loss += model.LossSum(tensor(row.inputs), tensor(row.labels), row.cu_seqlens).item<double>();
      labels += row.loss_tokens;
    }
  }));
  const double counts = layout_.counts_samples() ? 1 : 0;
  const at::Tensor sums = at::tensor(
      {counts * loss, counts * static_cast<double>(labels), counts * static_cast<double>(rows_.size())}, at::kDouble);
  MR_TRY(layout_.world().AllReduce(sums));
  const double* all = sums.data_ptr<double>();
  return EvalReport{.loss = all[0] / std::max(1.0, all[1]),
                    .samples = static_cast<std::uint64_t>(all[2]),
                    .labels = static_cast<std::uint64_t>(all[1])};
}

}  // namespace millrace::train
