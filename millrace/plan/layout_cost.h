// The parts of a model under one layout, and what each rank of a pipeline has of them.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "millrace/plan/part_cost.h"

namespace millrace::plan {

/// The costs of a model's parts under one division of its layers.
struct LayoutCost {
  PartCost embedding, block, head, head_with_table;
  PartCost block_again;  ///< a block that is run again in the backward pass, and then keeps all that this pass needs
};

/// Returns the costs on the tensor-parallel rank `tensor_rank`. `machine` may be null: then no times are given.
LayoutCost CostOfLayout(const TrainingSetup& setup, const engine::ParallelOptions& options, const Machine* machine,
                        int tensor_rank = 0);

/// The parameter groups that a part of a model has of its own: one, or more where it has a token table that the first
/// and the last stage share.
struct PartGroups {
  std::array<std::int64_t, 3> elements{};
  int count = 0;
  std::int64_t total() const { return elements[0] + elements[1] + elements[2]; }
  void Add(std::int64_t group) { elements[static_cast<std::size_t>(count++)] = group; }
};

/// What rank `rank` of a pipeline has.
struct RankShare {
  int rank = 0;
  std::int64_t blocks = 0;
  std::int64_t recomputed = 0;             ///< of these, blocks of which only the input is kept
  std::int64_t recomputed_first = 0;       ///< of those, first blocks of stages, whose input is one tensor
  std::int64_t recomputed_pairs = 0;       ///< stages that begin with two such blocks
  std::vector<std::int64_t> stage_blocks;  ///< of each of its stages
  PartGroups embedding_groups, block_groups, head_groups;
  std::int64_t elements = 0;      ///< of its parameter buffer
  std::int64_t largest_part = 0;  ///< elements of its largest part
  std::int64_t shared_table = 0;  ///< elements of a tied token table that the stage at the other end has, too
  bool embeds = false, predicts = false;
  bool head_uses_embedding = false;  ///< it has both ends of a model with a tied token table
  const PartCost* head = nullptr;    ///< borrowed from the LayoutCost; null unless it predicts
};

/// Returns the shares of a pipeline's ranks, in order.
std::vector<RankShare> SharesOf(const TrainingSetup& setup, const Layout& layout, const LayoutCost& cost);

/// Returns the bytes that one micro-batch keeps of all blocks of a rank.
std::int64_t KeptByBlocks(const TrainingSetup& setup, const Layout& layout, const LayoutCost& cost,
                          const RankShare& share);

/// Returns how many micro-batches' activations, of all stages of the rank together, a rank of a pipeline keeps at most.
/// A fraction where a rank has several stages. simple: Huang et al. 2018; 1f1b and interleaved: Narayanan et al. 2021.
double MicrobatchesInFlight(const Layout& layout, int rank);
/// Returns how many more wait for their weight gradients, with ZB-H1 (Qi et al. 2023).
double MicrobatchesOfWeights(const Layout& layout, int rank);

}  // namespace millrace::plan
