#include "millrace/plan/memory.h"

#include <algorithm>
#include <numeric>

#include "millrace/plan/sharded_passes.h"

namespace millrace::plan {
namespace {

constexpr std::int64_t kGradientBytes = 4, kSentBytes = 2;
// A token of a row of pairs: as input, label and position in 32 bits, and as input and label in 64 (train::MicroBatch).
constexpr std::int64_t kPairTokenBytes = 3 * 4 + 2 * 8;
constexpr std::int64_t kBucketElements = (8 << 20) / kGradientBytes;  // engine::DataExchangeOptions

/// Holes of malloc's heap, of the activations, where several micro-batches are in flight: blocks are freed in another
/// order than they were taken in. Measured (docs/scale.md, "Beside runs on this machine").
constexpr double kHoles = 0.2;

/// Inputs of blocks that are on the device while others wait on the host: that of the block under way, and those that
/// are copied.
constexpr std::int64_t kInputsUnderWay = 3;

std::int64_t Part(std::int64_t all, std::int64_t ranks) { return (all + ranks - 1) / ranks; }

/// A part that computes, and the one that is fetched ahead; without reshard, all parts. Gradients of a part wait for
/// their reduce-scatter; copies of them that travel take the place of the second part's.
std::int64_t GatheredOnDevice(const Layout& layout, const RankShare& share, std::int64_t element_bytes) {
  const std::int64_t parts = layout.options.reshard ? std::min(share.elements, 2 * share.largest_part) : share.elements;
  const std::int64_t waiting = layout.options.reduce_in_bf16 ? 1 : 2;
  return (layout.options.zero == 3 ? parts * element_bytes : 0) +
         std::min(share.trained, waiting * share.largest_trained) * kGradientBytes;
}

/// Blocks for weights of other ranks, for gradients before they are divided, and for their copies that travel.
std::int64_t GatheredBytes(const TrainingSetup& setup, const Layout& layout, const RankShare& share,
                           const Machine& machine) {
  const std::int64_t element = setup.element_bytes();
  if (layout.options.zero >= 2) {
    const std::int64_t gathered =
        machine.accelerators > 0 ? GatheredOnDevice(layout, share, element) : PooledBytes(layout, share, element);
    return gathered +
           (layout.options.reduce_in_bf16 ? std::min(share.trained, 2 * share.largest_trained) * kSentBytes : 0);
  }
  if (!layout.options.reduce_in_bf16 || layout.data_ranks() <= 1) return 0;
  // Copies of two buckets that travel.
  return std::min(share.trained, 2 * std::max(share.largest_trained, kBucketElements)) * kSentBytes;
}

/// The residual stream of a micro-batch on one rank.
std::int64_t StreamBytes(const TrainingSetup& setup, const Layout& layout) {
  const bool divides_tokens = layout.options.sequence && layout.options.tensor > 1;
  return setup.micro_tokens() / (divides_tokens ? layout.options.tensor : 1) * setup.model.hidden_size *
         setup.element_bytes();
}

/// What the blocks of a rank keep on the device for the backward pass of one micro-batch.
std::int64_t BlockBytes(const TrainingSetup& setup, const Layout& layout, const LayoutCost& cost,
                        const RankShare& share, const Machine& machine) {
  return KeptByBlocks(cost, share) + (OffloadsInputs(layout, machine) ? 0 : InputBytes(setup, layout, share));
}

/// What the blocks of a rank keep for passes that make weight gradients later.
std::int64_t WeightPassBytes(const LayoutCost& cost, const RankShare& share) {
  std::int64_t bytes = 0;
  for (std::size_t kind = 0; kind < share.kinds.size(); ++kind) {
    bytes += share.kinds[kind].all * cost.blocks[kind].once.weight_pass_bytes;
  }
  return bytes;
}

std::int64_t ActivationBytes(const TrainingSetup& setup, const Layout& layout, const LayoutCost& cost,
                             const RankShare& share, const Machine& machine) {
  const std::int64_t blocks = BlockBytes(setup, layout, cost, share, machine);
  const std::int64_t ends = share.embeds ? cost.embedding.kept_bytes : 0;
  const auto kept = static_cast<std::int64_t>(
      MicrobatchesInFlight(layout, share.rank) * static_cast<double>(blocks + ends) +
      MicrobatchesOfWeights(layout, share.rank) * static_cast<double>(WeightPassBytes(cost, share)));
  if (!OffloadsInputs(layout, machine)) return kept;
  return kept +
         std::min(InputBytes(setup, layout, share), kInputsUnderWay * setup.model.stream * StreamBytes(setup, layout));
}

/// The results that live during one pass, where they are largest. The head's part is gone before the blocks go back.
std::int64_t WorkingBytes(const TrainingSetup& setup, const Layout& layout, const LayoutCost& cost,
                          const RankShare& share, const Machine& machine) {
  const std::int64_t stream = StreamBytes(setup, layout);
  const bool defers = layout.options.pipeline > 1 && layout.options.schedule == engine::PipelineSchedule::kZeroBubble;
  const auto peak_of = [defers](const PartCost& part) { return defers ? part.deferring_bytes : part.backward_bytes; };
  std::int64_t working = 0;
  for (std::size_t kind = 0; kind < share.kinds.size(); ++kind) {
    const PartCost &once = cost.blocks[kind].once, &again = cost.blocks[kind].again;
    if (share.kinds[kind].recomputed > 0) {
      // What its first norm or product keeps is, in some blocks, the input that is kept anyway.
      const bool keeps_input = setup.model.stream == 1 || share.blocks == share.recomputed_first;
      working = std::max(working, peak_of(again) - (keeps_input ? stream : 0));
    }
    if (share.kinds[kind].all > share.kinds[kind].recomputed) {
      working = std::max(working, peak_of(once) - once.kept_bytes);
    }
  }
  // A pass that defers has, of the blocks behind it, what the weight gradients need in place of what the blocks kept.
  if (defers && share.blocks > 0) {
    const std::int64_t more = WeightPassBytes(cost, share) - BlockBytes(setup, layout, cost, share, machine);
    working += std::max<std::int64_t>(0, more / share.blocks * (share.blocks - 1));
  }
  if (share.head != nullptr) {
    // The last block's result is there, too; the part of it that a norm of this block keeps is counted already.
    const std::int64_t result = share.recomputed > 0 ? setup.model.stream * stream : stream;
    working = std::max({working, share.head->forward_bytes + result, share.head->backward_bytes});
  }
  return working;
}

/// Samples read ahead, and with DPO all pairs of a step: the reference passes over them before the first is learnt
/// from. Its passes keep nothing, so they need less of the other kinds of memory than those that learn.
std::int64_t DataBytes(const TrainingSetup& setup, const Layout& layout) {
  const std::int64_t pairs = layout.microbatches * setup.micro_tokens() * kPairTokenBytes;
  return setup.data_bytes + (setup.compares_pairs ? pairs : 0);
}

}  // namespace

std::string_view MemoryKindName(MemoryKind kind) {
  static constexpr std::array<std::string_view, kMemoryKinds> kNames = {
      "weights",     "gathered", "gradients", "optimizer", "master",
      "activations", "working",  "snapshot",  "data",      "process"};
  return kNames[static_cast<std::size_t>(kind)];
}

std::int64_t MemoryUse::total() const { return std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0}); }

MemoryUse MemoryOf(const TrainingSetup& setup, const Layout& layout, const LayoutCost& cost, const RankShare& share,
                   const Machine& machine) {
  const int zero = layout.options.zero;
  const std::int64_t all = share.elements, trained = share.trained, element = setup.element_bytes();
  const auto held = [&](std::int64_t elements, int from) {
    return zero >= from ? Part(elements, layout.shape.shard) : elements;
  };
  MemoryUse use;
  use[MemoryKind::kWeights] = held(all, 3) * element + share.quantized_bytes;  // these are never divided by zero
  use[MemoryKind::kGradients] = held(trained, 2) * kGradientBytes;
  if (!setup.offloads_state || machine.accelerators == 0) {
    use[MemoryKind::kOptimizer] = held(trained, 1) * setup.moments * setup.moment_bytes;
    use[MemoryKind::kMaster] = held(trained, 1) * setup.master_bytes();
  }
  use[MemoryKind::kGathered] = GatheredBytes(setup, layout, share, machine);
  use[MemoryKind::kActivations] = ActivationBytes(setup, layout, cost, share, machine);
  use[MemoryKind::kWorking] = WorkingBytes(setup, layout, cost, share, machine);
  use[MemoryKind::kProcess] = static_cast<std::int64_t>(machine.process_memory);
  if (machine.accelerators > 0) return use;  // the rest is in the host's memory
  if (layout.options.pipeline > 1 && MicrobatchesInFlight(layout, share.rank) > 1) {
    use[MemoryKind::kProcess] += static_cast<std::int64_t>(kHoles * static_cast<double>(use[MemoryKind::kActivations]));
  }
  const std::int64_t state = setup.moments * setup.moment_bytes + setup.master_bytes();
  const std::int64_t saved = setup.model.is_adapted() ? trained : all;  // adapters are saved without their model
  use[MemoryKind::kSnapshot] = setup.snapshots * Part(saved * element + trained * state, layout.data_ranks());
  use[MemoryKind::kData] = DataBytes(setup, layout);
  return use;
}

}  // namespace millrace::plan
