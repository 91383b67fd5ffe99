#include "millrace/plan/layout_cost.h"

#include <algorithm>

namespace millrace::plan {

using engine::PipelineSchedule;
using engine::Recompute;

namespace {

/// A table that two stages share has a group of its own.
PartGroups GroupsOf(const PartCost& part, bool shares_table, int parts) {
  PartGroups groups;
  const auto add = [&](std::int64_t elements) { groups.Add(GroupElements(elements, parts)); };
  if (!shares_table) {
    add(part.elements);
    return groups;
  }
  const std::int64_t table_end = GroupElements(part.before_table + part.table, 1);
  if (part.before_table > 0) add(part.before_table);
  add(part.table);
  if (part.elements > table_end) add(part.elements - table_end);
  return groups;
}

}  // namespace

LayoutCost CostOfLayout(const TrainingSetup& setup, const engine::ParallelOptions& options, const Machine* machine,
                        int tensor_rank) {
  PartDivision division{.tensor = options.tensor,
                        .tensor_rank = tensor_rank,
                        .sequence = options.sequence && options.tensor > 1,
                        .recompute = options.recompute,
                        .is_block = true};
  const auto cost = [&](const std::vector<Layer>& part) { return CostOf(part, setup, division, machine); };
  LayoutCost costs{.block = cost(setup.model.block)};
  division.recompute = Recompute::kNone;
  division.again = true;
  costs.block_again = cost(setup.model.block);
  division.is_block = division.again = false;
  costs.embedding = cost(setup.model.embedding);
  costs.head = cost(setup.model.head);
  division.owns_tied_table = true;
  costs.head_with_table = cost(setup.model.head);
  return costs;
}

std::vector<RankShare> SharesOf(const TrainingSetup& setup, const Layout& layout, const LayoutCost& cost) {
  const engine::ParallelOptions& options = layout.options;
  std::vector<RankShare> shares(static_cast<std::size_t>(options.pipeline));
  const std::vector<engine::BlockRange> stages = layout.Stages(setup);
  const int parts = options.zero > 0 ? layout.shape.shard : 1;
  const bool is_divided = options.pipeline > 1, shares_table = is_divided && setup.model.tied();
  const PartGroups embedding = GroupsOf(cost.embedding, shares_table, parts);
  const PartGroups block = GroupsOf(cost.block, false, parts);
  const PartGroups head = GroupsOf(is_divided ? cost.head_with_table : cost.head, shares_table, parts);
  for (std::size_t i = 0; i < stages.size(); ++i) {
    RankShare& share = shares[i % shares.size()];
    share.blocks += stages[i].count();
    share.stage_blocks.push_back(stages[i].count());
    if (options.recompute != Recompute::kFull) continue;
    const auto before = [&](std::int64_t layer) {  // recomputed blocks among the first `layer`
      return (layer + options.recompute_every - 1) / options.recompute_every;
    };
    share.recomputed += before(stages[i].last) - before(stages[i].first);
    if (stages[i].count() > 0 && stages[i].first % options.recompute_every == 0) ++share.recomputed_first;
    if (stages[i].count() > 1 && options.recompute_every == 1) ++share.recomputed_pairs;
  }
  for (std::size_t i = 0; i < shares.size(); ++i) {
    RankShare& share = shares[i];
    share.rank = static_cast<int>(i);
    share.embeds = i == 0;
    share.predicts = i + 1 == shares.size();
    share.head_uses_embedding = !is_divided && setup.model.tied();
    share.block_groups = block;
    if (share.embeds) share.embedding_groups = embedding;
    if (share.predicts) {
      share.head = is_divided ? &cost.head_with_table : &cost.head;
      share.head_groups = head;
    }
    if (shares_table && (share.embeds || share.predicts)) share.shared_table = cost.embedding.table;
    const std::int64_t blocks = share.blocks > 0 ? block.total() : 0;
    share.elements = share.embedding_groups.total() + share.blocks * block.total() + share.head_groups.total();
    share.largest_part = std::max({blocks, share.embedding_groups.total(), share.head_groups.total()});
  }
  return shares;
}

std::int64_t KeptByBlocks(const TrainingSetup& setup, const Layout& layout, const LayoutCost& cost,
                          const RankShare& share) {
  const bool divides_tokens = layout.options.sequence && layout.options.tensor > 1;
  const std::int64_t rows = setup.micro_tokens() / (divides_tokens ? layout.options.tensor : 1);
  const std::int64_t stream = rows * setup.model.hidden_size * setup.element_bytes();
  std::int64_t inputs = setup.model.stream * share.recomputed - (setup.model.stream - 1) * share.recomputed_first;
  if (setup.model.adds_once) inputs -= share.recomputed_pairs;  // both have the same residual stream
  return inputs * stream + (share.blocks - share.recomputed) * cost.block.kept_bytes;
}

double MicrobatchesInFlight(const Layout& layout, int rank) {
  const engine::ParallelOptions& options = layout.options;
  const auto all = static_cast<double>(layout.microbatches);
  const double behind = options.pipeline - rank;  // this rank among them
  if (options.pipeline == 1) return 1;            // each micro-batch goes forward and back in turn
  switch (options.schedule) {
    case PipelineSchedule::kSimple:
      return all;
    case PipelineSchedule::kInterleaved: {
      const double stages = options.virtual_stages;
      return std::min(all * stages, 2 * (behind - 1) + (stages - 1) * options.pipeline + 1) / stages;
    }
    case PipelineSchedule::k1F1B:
    case PipelineSchedule::kZeroBubble:
      break;
  }
  return std::min(all, behind);
}

double MicrobatchesOfWeights(const Layout& layout, int rank) {
  if (layout.options.schedule != PipelineSchedule::kZeroBubble) return 0;
  const auto all = static_cast<double>(layout.microbatches);
  return std::min<double>(all, layout.options.pipeline) - MicrobatchesInFlight(layout, rank);
}

}  // namespace millrace::plan
