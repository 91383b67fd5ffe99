#include "millrace/plan/search.h"

#include <algorithm>
#include <limits>

#include "millrace/base/text.h"

namespace millrace::plan {
namespace {

using engine::ParallelOptions, engine::PipelineSchedule, engine::Recompute;

constexpr int kMaxVirtualStages = 16;
constexpr int kMaxUnevenStages = 8;  // beyond, only numbers that divide the blocks evenly

std::vector<int> Divisors(int number) {
  std::vector<int> divisors;
  for (int i = 1; std::int64_t{i} * i <= number; ++i) {
    if (number % i != 0) continue;
    divisors.push_back(i);
    if (i != number / i) divisors.push_back(number / i);
  }
  std::ranges::sort(divisors);
  return divisors;
}

struct Candidate {
  ParallelOptions options;
  double seconds = 0;
  std::int64_t bytes = 0;
};

class LayoutSearch {
 public:
  LayoutSearch(const TrainingSetup& setup, const Machine& machine, const SearchGoal& goal)
      : setup_(setup), machine_(machine), goal_(goal), limit_(MemoryLimit(setup, machine)) {}

  Result<SearchResult> Run() {
    for (const int tensor : Divisors(setup_.ranks)) {
      // Beyond a machine, the exchanges of each layer take longer than the layer.
      if (tensor > 1 && tensor > setup_.ranks_per_machine) break;
      for (const bool sequence : {false, true}) {
        for (const Recompute recompute : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
          if (sequence && (tensor == 1 || setup_.micro_tokens() % tensor != 0)) continue;
          TryDivision({.tensor = tensor,
                       .sequence = sequence,
                       .reduce_in_bf16 = goal_.reduce_in_bf16,
                       .recompute = recompute,
                       .placement = goal_.placement});
        }
      }
    }
    if (candidates_.empty()) return NothingFits();
    return SearchResult{.options = Best().options, .tried = tried_, .fitting = candidates_.size()};
  }

 private:
  void TryDivision(ParallelOptions options) {
    if (!MakeLayout({.model = setup_.model,
                     .ranks = options.tensor,
                     .global_batch = setup_.micro_batch,
                     .micro_batch = setup_.micro_batch,
                     .sequence_length = setup_.sequence_length},
                    options)) {
      return;
    }
    const LayoutCost cost = CostOfLayout(setup_, options, &machine_);
    for (const int pipeline : Divisors(setup_.ranks / options.tensor)) {
      if (pipeline > setup_.model.num_layers) break;
      options.pipeline = pipeline;
      const int data = setup_.ranks / options.tensor / pipeline;
      if (setup_.global_batch % (data * setup_.micro_batch) != 0) continue;
      TrySchedules(options, cost, data);
    }
  }

  void TrySchedules(ParallelOptions options, const LayoutCost& cost, int data) {
    options.schedule = PipelineSchedule::k1F1B;
    TryShards(options, cost, data);
    if (options.pipeline == 1) return;
    options.schedule = PipelineSchedule::kZeroBubble;
    TryShards(options, cost, data);
    options.schedule = PipelineSchedule::kInterleaved;
    const auto most = std::min<std::int64_t>(kMaxVirtualStages, setup_.model.num_layers / options.pipeline);
    for (options.virtual_stages = 2; options.virtual_stages <= most; ++options.virtual_stages) {
      const bool even = setup_.model.num_layers % (std::int64_t{options.pipeline} * options.virtual_stages) == 0;
      if (even || options.virtual_stages <= kMaxUnevenStages) {
        TryShards(options, cost, data);
      }
    }
  }

  void TryShards(ParallelOptions options, const LayoutCost& cost, int data) {
    TryOne(options, cost);
    if (data == 1) return;
    const auto near = static_cast<int>(SpanOf({.options = options, .shape = ShapeOf(options, setup_.ranks).value()},
                                              engine::MeshAxis::kReplica, setup_.ranks_per_machine)
                                           .per_machine);
    for (options.zero = 1; options.zero <= 3; ++options.zero) {
      for (const int shard : {data, near, 8 * near}) {
        if (shard == 1 || shard > data || data % shard != 0) continue;
        options.shard = shard == data ? 0 : shard;
        options.reshard = true;
        TryOne(options, cost);
        options.reshard = false;
        if (options.zero == 3) TryOne(options, cost);
      }
      options.shard = 0;
    }
  }

  void TryOne(const ParallelOptions& options, const LayoutCost& cost) {
    const auto layout = MakeLayout(setup_, options);
    if (!layout) return;
    ++tried_;
    const std::vector<RankShare> shares = SharesOf(setup_, *layout, cost);
    Candidate candidate{.options = options};
    for (const RankShare& share : shares) {
      candidate.bytes = std::max(candidate.bytes, MemoryOf(setup_, *layout, cost, share, machine_).total());
    }
    least_bytes_ = std::min(least_bytes_, candidate.bytes);
    if (static_cast<double>(candidate.bytes) > limit_) return;
    candidate.seconds = TimeOf(setup_, *layout, cost, shares, machine_).total();
    candidates_.push_back(std::move(candidate));
  }

  const Candidate& Best() const {
    const double seconds = std::ranges::min_element(candidates_, {}, &Candidate::seconds)->seconds;
    const auto bytes = static_cast<double>(std::ranges::min_element(candidates_, {}, &Candidate::bytes)->bytes);
    const auto score = [&](const Candidate& each) {
      return std::pair((1 - goal_.memory_weight) * each.seconds / seconds +
                           goal_.memory_weight * static_cast<double>(each.bytes) / bytes,
                       each.bytes);
    };
    // Of equals the first, which has the fewest features.
    return *std::ranges::min_element(candidates_, {}, score);
  }

  Error NothingFitsError() const {
    if (tried_ == 0) {
      return Error(Code::kInvalidArgument,
                   fmt::format("no layout of {} ranks divides train.global_batch {} into micro-batches of {}",
                               setup_.ranks, setup_.global_batch, setup_.micro_batch));
    }
    return Error(Code::kResourceExhausted,
                 fmt::format("none of {} layouts fits: a rank needs at least {}, and {} may be used on {}. Take more "
                             "ranks, a smaller train.micro_batch or shorter sequences",
                             tried_, FormatBytes(static_cast<std::uint64_t>(least_bytes_)),
                             FormatBytes(static_cast<std::uint64_t>(limit_)), machine_.name));
  }
  Result<SearchResult> NothingFits() const { return Fail(NothingFitsError()); }

  const TrainingSetup& setup_;
  const Machine& machine_;
  const SearchGoal& goal_;
  const double limit_;
  std::size_t tried_ = 0;
  std::int64_t least_bytes_ = std::numeric_limits<std::int64_t>::max();
  std::vector<Candidate> candidates_;
};

}  // namespace

Result<SearchResult> ChooseLayout(const TrainingSetup& setup, const Machine& machine, const SearchGoal& goal) {
  return LayoutSearch(setup, machine, goal).Run();
}

}  // namespace millrace::plan
