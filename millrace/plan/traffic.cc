#include "millrace/plan/traffic.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace millrace::plan {
namespace {

using engine::MeshAxis;

constexpr std::int64_t kFloatBytes = 4;
constexpr std::int64_t kBucketBytes = 8 << 20;  // engine::GradientReducer
constexpr std::int64_t kSumBytes = 56;          // of a step's losses, labels and flags, over all ranks
constexpr std::int64_t kNormBytes = 8;          // of the gradient's norm

/// Collects the lines of a rank.
class TrafficCounter {
 public:
  TrafficCounter(const TrainingSetup& setup, const Layout& layout, const LayoutCost& cost, const RankShare& share)
      : setup_(setup),
        layout_(layout),
        cost_(cost),
        share_(share),
        tensor_(Span(MeshAxis::kTensor)),
        shard_(Span(MeshAxis::kShard)),
        data_(Span(MeshAxis::kReplica)) {}

  std::vector<TrafficLine> Count() {
    AddTensor();
    AddPipeline();
    AddGradients();
    const RankSpan all{.ranks = setup_.ranks, .per_machine = std::min(setup_.ranks, setup_.ranks_per_machine)};
    Add("all", "losses", ExchangeKind::kAllReduce, all, 1, kSumBytes);
    return std::move(lines_);
  }

 private:
  RankSpan Span(MeshAxis axis) const { return SpanOf(layout_, axis, setup_.ranks_per_machine); }

  void Add(std::string_view axis, std::string_view purpose, ExchangeKind kind, RankSpan span, std::int64_t operations,
           std::int64_t bytes, std::int64_t microbatches = 1) {
    if (span.ranks == 1 || operations == 0) return;
    lines_.push_back({axis, purpose, kind, span, operations, bytes, microbatches});
  }

  void AddTensor() {
    if (tensor_.ranks == 1) return;
    Exchanges each;
    const auto add = [&](const PartCost& part, std::int64_t times) {
      each.Add(part.forward, times);
      each.Add(part.backward, times);
    };
    add(cost_.block, share_.blocks);
    each.Add(cost_.block.forward, share_.recomputed);
    if (share_.embeds) add(cost_.embedding, 1);
    if (share_.head != nullptr) add(*share_.head, 1);
    const std::int64_t m = layout_.microbatches;
    const auto line = [&](ExchangeKind kind, const Exchanges::Count& count) {
      Add("tensor", "activations", kind, tensor_, m * count.operations, m * count.bytes, m);
    };
    line(ExchangeKind::kAllReduce, each.all_reduce);
    line(ExchangeKind::kAllGather, each.all_gather);
    line(ExchangeKind::kReduceScatter, each.reduce_scatter);
    std::int64_t partial = share_.blocks * cost_.block.partial_elements;
    if (share_.embeds) partial += cost_.embedding.partial_elements;
    if (share_.head != nullptr) partial += share_.head->partial_elements;
    if (partial > 0) Add("tensor", "gradients", ExchangeKind::kAllReduce, tensor_, 1, partial * kFloatBytes);
    Add("tensor", "norm", ExchangeKind::kAllReduce, tensor_, 1, kNormBytes);
  }

  void AddPipeline() {
    const RankSpan pipeline = Span(MeshAxis::kPipeline);
    if (pipeline.ranks == 1) return;
    const bool divides_tokens = layout_.options.sequence && tensor_.ranks > 1;
    const std::int64_t rows = setup_.micro_tokens() / (divides_tokens ? tensor_.ranks : 1);
    const std::int64_t bytes = rows * setup_.model.hidden_size * setup_.element_bytes();
    const std::int64_t stages = layout_.options.virtual_stages, m = layout_.microbatches;
    // A stage sends to the next one and, going back, to the one before; the first and the last stage of all lack one.
    const std::int64_t messages = m * (2 * stages - (share_.embeds ? 1 : 0) - (share_.predicts ? 1 : 0));
    Add("pipeline", "activations", ExchangeKind::kSend, pipeline, messages, messages * bytes, m);
    Add("pipeline", "activations", ExchangeKind::kReceive, pipeline, messages, messages * bytes, m);
    Add("pipeline", "norm", ExchangeKind::kAllReduce, pipeline, 1, kNormBytes);
    if (setup_.model.tied() && (share_.embeds || share_.predicts)) {
      const std::int64_t table = cost_.head_with_table.elements - cost_.head.elements;
      const std::int64_t machines = pipeline.machines() > 1 ? 2 : 1;
      Add("ends", "tied embedding", ExchangeKind::kAllReduce, {.ranks = 2, .per_machine = 3 - machines}, 1,
          table * kFloatBytes);
    }
  }

  void AddGradients() {
    const int zero = layout_.options.zero;
    const std::int64_t gradients = share_.elements * kFloatBytes, m = layout_.microbatches;
    const auto buckets = [](std::int64_t bytes) { return (bytes + kBucketBytes - 1) / kBucketBytes; };
    if (zero == 0) {
      return Add("data", "gradients", ExchangeKind::kAllReduce, data_, buckets(gradients), gradients);
    }
    const std::int64_t reductions = zero >= 2 ? m : 1;
    Add("shard", "gradients", ExchangeKind::kReduceScatter, shard_, reductions * buckets(gradients),
        reductions * gradients, reductions);
    const RankSpan replica{.ranks = layout_.shape.replica,
                           .per_machine = std::max<std::int64_t>(1, data_.per_machine / shard_.ranks)};
    const std::int64_t own = gradients / shard_.ranks;
    Add("replica", "gradients", ExchangeKind::kAllReduce, replica, buckets(own), own);
    const std::int64_t weights = share_.elements * setup_.element_bytes();
    const std::int64_t gathers = zero < 3 ? 1 : m * (layout_.options.reshard ? 2 : 1);
    Add("shard", "weights", ExchangeKind::kAllGather, shard_, gathers * buckets(weights), gathers * weights,
        zero < 3 ? 1 : m);
    Add("shard", "norm", ExchangeKind::kAllReduce, shard_, 1, kNormBytes);
  }

  const TrainingSetup& setup_;
  const Layout& layout_;
  const LayoutCost& cost_;
  const RankShare& share_;
  const RankSpan tensor_, shard_, data_;
  std::vector<TrafficLine> lines_;
};

}  // namespace

std::string_view ExchangeKindName(ExchangeKind kind) {
  static constexpr std::array<std::string_view, 5> kNames = {"all-reduce", "all-gather", "reduce-scatter", "send",
                                                             "receive"};
  return kNames[static_cast<std::size_t>(kind)];
}

double TrafficLine::sent() const {
  const auto n = static_cast<double>(span.ranks), all = static_cast<double>(bytes);
  switch (kind) {
    case ExchangeKind::kAllReduce:
      return 2 * (n - 1) / n * all;
    case ExchangeKind::kAllGather:
    case ExchangeKind::kReduceScatter:
      return (n - 1) / n * all;
    case ExchangeKind::kSend:
      return all;
    case ExchangeKind::kReceive:
      break;
  }
  return 0;
}

double TrafficLine::Seconds(const Machine& machine, int ranks_per_machine) const {
  if (kind == ExchangeKind::kReceive) return 0;  // somebody's send
  const auto machines = static_cast<double>(span.machines()), near = static_cast<double>(span.per_machine);
  double bandwidth = machine.link.bandwidth, latency = machine.link.latency * (near - 1);
  if (machines > 1) {
    // The ranks of a group that share a machine use their network cards together.
    const double cards = kind == ExchangeKind::kSend ? 1 : near;
    bandwidth = std::min(bandwidth, cards * machine.network.bandwidth / ranks_per_machine);
    latency += machine.network.latency * std::ceil(std::log2(machines));
  }
  if (kind == ExchangeKind::kSend) latency = machines > 1 ? machine.network.latency : machine.link.latency;
  if (kind == ExchangeKind::kAllReduce) latency *= 2;
  return sent() / bandwidth + static_cast<double>(operations) * latency;
}

std::vector<TrafficLine> TrafficOf(const TrainingSetup& setup, const Layout& layout, const LayoutCost& cost,
                                   const RankShare& share) {
  return TrafficCounter(setup, layout, cost, share).Count();
}

}  // namespace millrace::plan
