#include "millrace/plan/traffic.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "millrace/plan/sharded_passes.h"

namespace millrace::plan {
namespace {

using engine::MeshAxis;

constexpr std::int64_t kFloatBytes = 4, kBf16Bytes = 2;
constexpr std::int64_t kBucketBytes = 8 << 20;  // engine::DataExchangeOptions
constexpr std::int64_t kSumBytes = 64;          // of a step's losses, labels and flags, over all ranks
constexpr std::int64_t kRewardBytes = 48;       // engine::PreferenceSums
constexpr std::int64_t kNormBytes = 8;          // of the gradient's norm
constexpr std::int64_t kLabelBytes = 16;        // of the labels of tokens and of rows

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
        data_(Span(MeshAxis::kReplica)),
        parts_(layout.options.zero > 0 ? layout.shape.shard : 1) {}

  std::vector<TrafficLine> Count() {
    AddTensor();
    AddPipeline();
    AddGradients();
    if (setup_.compares_pairs) AddReference();
    const RankSpan model = Together(Together(tensor_, shard_), Span(MeshAxis::kPipeline));
    Add("model", "norm", ExchangeKind::kAllReduce, model, 1, kNormBytes);
    const RankSpan all{.ranks = setup_.ranks, .per_machine = std::min(setup_.ranks, setup_.ranks_per_machine)};
    Add("all", "losses", ExchangeKind::kAllReduce, all, 1, kSumBytes + (setup_.compares_pairs ? kRewardBytes : 0));
    if (setup_.model.adds_row_loss) Add("all", "labels", ExchangeKind::kAllReduce, all, 1, kLabelBytes);
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
    std::int64_t partial = 0;
    for (std::size_t kind = 0; kind < share_.kinds.size(); ++kind) {
      const PartCost& block = cost_.blocks[kind].once;
      add(block, share_.kinds[kind].all);
      each.Add(block.forward, share_.kinds[kind].recomputed);
      partial += share_.kinds[kind].all * block.partial_elements;
    }
    if (share_.embeds) add(cost_.embedding, 1);
    if (share_.head != nullptr) add(*share_.head, 1);
    AddTensorLines("activations", each);
    if (share_.embeds) partial += cost_.embedding.partial_elements;
    if (share_.head != nullptr) partial += share_.head->partial_elements;
    // Each shard rank holds other elements of divided state, so the shard ranks take part, too.
    const RankSpan stage = Together(tensor_, shard_);
    if (partial > 0) Add("stage", "partial gradients", ExchangeKind::kAllReduce, stage, 1, partial * kFloatBytes);
  }

  /// `each`: of one micro-batch.
  void AddTensorLines(std::string_view purpose, const Exchanges& each) {
    const std::int64_t m = layout_.microbatches;
    const auto line = [&](ExchangeKind kind, const Exchanges::Count& count) {
      Add("tensor", purpose, kind, tensor_, m * count.operations, m * count.bytes, m);
    };
    line(ExchangeKind::kAllReduce, each.all_reduce);
    line(ExchangeKind::kAllGather, each.all_gather);
    line(ExchangeKind::kReduceScatter, each.reduce_scatter);
  }

  /// Returns the bytes of the hidden states that a stage sends of a micro-batch.
  std::int64_t MessageBytes() const {
    const bool divides_tokens = layout_.options.sequence && tensor_.ranks > 1;
    const std::int64_t rows = setup_.micro_tokens() / (divides_tokens ? tensor_.ranks : 1);
    return rows * setup_.model.hidden_size * setup_.element_bytes();
  }

  /// The forward passes of an evaluation of all micro-batches.
  void AddReference() {
    Exchanges each;
    for (std::size_t kind = 0; kind < share_.kinds.size(); ++kind) {
      each.Add(cost_.blocks[kind].once.forward, share_.kinds[kind].all);
    }
    if (share_.embeds) each.Add(cost_.embedding.forward);
    if (share_.head != nullptr) each.Add(share_.head->forward);
    AddTensorLines(kReferencePurpose, each);

    const RankSpan pipeline = Span(MeshAxis::kPipeline);
    const std::int64_t stages = layout_.options.virtual_stages, m = layout_.microbatches, bytes = MessageBytes();
    const std::int64_t sends = m * (stages - (share_.predicts ? 1 : 0)),
                       receives = m * (stages - (share_.embeds ? 1 : 0));
    Add("pipeline", kReferencePurpose, ExchangeKind::kSend, pipeline, sends, sends * bytes, m);
    Add("pipeline", kReferencePurpose, ExchangeKind::kReceive, pipeline, receives, receives * bytes, m);

    if (layout_.options.zero != 3) return;
    const ShardedPasses::Count gathers = GathersOfEvaluation(layout_, share_);
    Add("shard", kReferencePurpose, ExchangeKind::kAllGather, shard_, gathers.operations,
        gathers.elements * setup_.element_bytes(), m);
  }

  void AddPipeline() {
    const RankSpan pipeline = Span(MeshAxis::kPipeline);
    if (pipeline.ranks == 1) return;
    const std::int64_t bytes = MessageBytes();
    const std::int64_t stages = layout_.options.virtual_stages, m = layout_.microbatches;
    // A stage sends to the next one and, going back, to the one before; the first and the last stage of all lack one.
    const std::int64_t messages = m * (2 * stages - (share_.embeds ? 1 : 0) - (share_.predicts ? 1 : 0));
    Add("pipeline", "activations", ExchangeKind::kSend, pipeline, messages, messages * bytes, m);
    Add("pipeline", "activations", ExchangeKind::kReceive, pipeline, messages, messages * bytes, m);
    if (share_.shared_table > 0) {
      // A rank adds what it owns; the first shard rank has no gap.
      const std::int64_t own = GroupElements(share_.shared_table, static_cast<int>(parts_)) / parts_;
      const std::int64_t table = std::min(share_.shared_table, own);
      const std::int64_t machines = pipeline.machines() > 1 ? 2 : 1;
      Add("ends", "tied embedding", ExchangeKind::kAllReduce, {.ranks = 2, .per_machine = 3 - machines}, 1,
          table * kFloatBytes);
    }
  }

  void AddGradients() {
    const std::vector<std::int64_t> groups = TrainedGroups();
    const auto count = static_cast<std::int64_t>(groups.size());
    const std::int64_t m = layout_.microbatches, weight = setup_.element_bytes();
    const std::int64_t gradient = layout_.options.reduce_in_bf16 ? kBf16Bytes : kFloatBytes;
    if (layout_.options.zero == 0) {
      return Add("data", "gradients", ExchangeKind::kAllReduce, data_, BucketsOf(groups), share_.trained * gradient);
    }
    const RankSpan replica{.ranks = layout_.shape.replica,
                           .per_machine = std::max<std::int64_t>(1, data_.per_machine / shard_.ranks)};
    ShardedPasses passes{.scatters = {count, share_.trained}, .gathers = {count, share_.trained}};
    if (layout_.options.zero >= 2) {
      const ShardedPasses followed = RunShardedPasses(layout_, share_);
      passes.scatters = followed.scatters;
      if (layout_.options.zero == 3) passes.gathers = followed.gathers;
    }
    Add("shard", "gradients", ExchangeKind::kReduceScatter, shard_, passes.scatters.operations,
        passes.scatters.elements * gradient, layout_.options.zero >= 2 ? m : 1);
    Add("replica", "gradients", ExchangeKind::kAllReduce, replica, count, share_.trained / parts_ * gradient);
    Add("shard", "weights", ExchangeKind::kAllGather, shard_, passes.gathers.operations,
        passes.gathers.elements * weight, layout_.options.zero == 3 ? m : 1);
  }

  /// Returns the elements of the rank's parameter groups that are trained, in the order of its buffer.
  std::vector<std::int64_t> TrainedGroups() const {
    std::vector<std::int64_t> groups;
    const auto add = [&](const PartGroups& part) {
      for (const GroupSize& group : part.all()) {
        if (group.trains) groups.push_back(group.elements);
      }
    };
    add(share_.embedding_groups);
    for (const std::vector<std::size_t>& stage : share_.stage_kinds) {
      for (const std::size_t kind : stage) add(share_.block_groups[kind]);
    }
    add(share_.head_groups);
    return groups;
  }

  /// Returns how many all-reduces sum the gradients of groups together, as engine::DataExchange fills its buckets.
  static std::int64_t BucketsOf(const std::vector<std::int64_t>& groups) {
    std::int64_t buckets = 0, bytes = kBucketBytes;
    for (std::size_t i = groups.size(); i-- > 0; bytes += groups[i] * kFloatBytes) {
      if (bytes < kBucketBytes) continue;
      ++buckets;
      bytes = 0;
    }
    return buckets;
  }

  static RankSpan Together(const RankSpan& a, const RankSpan& b) {
    return {.ranks = a.ranks * b.ranks, .per_machine = a.per_machine * b.per_machine};
  }

  const TrainingSetup& setup_;
  const Layout& layout_;
  const LayoutCost& cost_;
  const RankShare& share_;
  const RankSpan tensor_, shard_, data_;
  const std::int64_t parts_;  ///< of each parameter group
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
