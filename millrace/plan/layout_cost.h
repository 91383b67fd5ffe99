// The parts of a model under one layout, and what each rank of a pipeline has of them.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "millrace/plan/part_cost.h"

namespace millrace::plan {

struct BlockCost {
  PartCost once;
  PartCost again;  ///< of a block that is run again in the backward pass, and then keeps all that this pass needs
};

/// The costs of a model's parts under one division of its layers.
struct LayoutCost {
  PartCost embedding, head, head_with_table;
  std::vector<BlockCost> blocks;  ///< by kind: ModelShape::KindOf
};

/// Returns the costs on the tensor-parallel rank `tensor_rank`. `machine` may be null: then no times are given.
LayoutCost CostOfLayout(const TrainingSetup& setup, const engine::ParallelOptions& options, const Machine* machine,
                        int tensor_rank = 0);

/// One of engine::ParameterBuffer's groups.
struct GroupSize {
  std::int64_t elements = 0;
  bool trains = true;
};

/// The parameter groups that a part of a model has of its own: one for what is trained and one for what is frozen. If
/// it has a token table that the first and the last stage share, the table is one, and what lies before and behind it
/// are others.
struct PartGroups {
  std::array<GroupSize, 5> groups{};
  int count = 0;
  std::span<const GroupSize> all() const { return {groups.data(), static_cast<std::size_t>(count)}; }
  std::int64_t total() const;
  std::int64_t trained() const;  ///< of the groups that are trained
};

/// Blocks of a kind.
struct BlockCount {
  std::int64_t all = 0, recomputed = 0;
};

/// The share of rank `rank` of a pipeline.
struct RankShare {
  int rank = 0;
  std::int64_t blocks = 0;
  std::vector<BlockCount> kinds;                      ///< of these, by kind
  std::int64_t recomputed = 0;                        ///< of these, blocks of which only the input is kept
  std::int64_t recomputed_first = 0;                  ///< of those, first blocks of stages, whose input is one tensor
  std::int64_t recomputed_pairs = 0;                  ///< stages that begin with two such blocks
  std::vector<std::vector<std::size_t>> stage_kinds;  ///< kinds of the blocks of each of its stages
  PartGroups embedding_groups, head_groups;
  std::vector<PartGroups> block_groups;    ///< by kind
  std::int64_t elements = 0, trained = 0;  ///< of its parameter buffer; of these, what is trained
  std::int64_t quantized_bytes = 0;        ///< of weights beside the buffer
  std::int64_t largest_part = 0;           ///< elements of its largest part
  std::int64_t largest_trained = 0;        ///< the most trained elements of a part
  std::int64_t shared_table = 0;  ///< elements of a trained tied token table that the stage at the other end has, too
  bool embeds = false, predicts = false;
  bool head_uses_embedding = false;  ///< it has both ends of a model with a tied token table
  const PartCost* head = nullptr;    ///< borrowed from the LayoutCost; null unless it predicts
};

/// Returns the shares of a pipeline's ranks, in order.
std::vector<RankShare> SharesOf(const TrainingSetup& setup, const Layout& layout, const LayoutCost& cost);

/// Returns the bytes that one micro-batch keeps of a rank's blocks that are computed again: their inputs.
std::int64_t InputBytes(const TrainingSetup& setup, const Layout& layout, const RankShare& share);
/// Returns the bytes that one micro-batch keeps of a rank's other blocks.
std::int64_t KeptByBlocks(const LayoutCost& cost, const RankShare& share);
/// Returns whether inputs of blocks wait in the memory of the host.
inline bool OffloadsInputs(const Layout& layout, const Machine& machine) {
  return layout.options.offload_activations && machine.accelerators > 0;
}

/// Returns how many micro-batches' activations, of all stages of the rank together, a rank of a pipeline keeps at most.
/// A fraction where a rank has several stages. simple: Huang et al. 2018; 1f1b and interleaved: Narayanan et al. 2021.
double MicrobatchesInFlight(const Layout& layout, int rank);
/// Returns how many more wait for their weight gradients, with ZB-H1 (Qi et al. 2023).
double MicrobatchesOfWeights(const Layout& layout, int rank);

}  // namespace millrace::plan
