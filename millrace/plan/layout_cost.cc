#include "millrace/plan/layout_cost.h"

#include <algorithm>

namespace millrace::plan {

using engine::PipelineSchedule;
using engine::Recompute;

namespace {

/// As engine::ParameterBuffer::GroupFor. A table that two stages share has a group of its own.
PartGroups GroupsOf(const PartCost& part, bool shares_table, int parts) {
  PartGroups made;
  std::array<GroupSize*, 2> open{};  // that take further parameters: frozen, trained
  for (const ParameterRun& run : part.parameters) {
    const bool stands_alone = shares_table && run.is_table;
    GroupSize*& group = open[run.trains ? 1 : 0];
    if (group == nullptr || stands_alone) {
      group = &made.groups[static_cast<std::size_t>(made.count++)];
      group->trains = run.trains;
    }
    group->elements = GroupElements(group->elements, 1) + run.elements;
    if (stands_alone) open = {};
  }
  for (GroupSize& group : made.groups) group.elements = GroupElements(group.elements, parts);
  return made;
}

/// Returns the elements of a tied table if it is trained.
std::int64_t TrainedTable(const PartCost& part) {
  for (const ParameterRun& run : part.parameters) {
    if (run.is_table && run.trains) return run.elements;
  }
  return 0;
}

}  // namespace

std::int64_t PartGroups::total() const {
  std::int64_t sum = 0;
  for (const GroupSize& group : all()) sum += group.elements;
  return sum;
}

std::int64_t PartGroups::trained() const {
  std::int64_t sum = 0;
  for (const GroupSize& group : all()) sum += group.trains ? group.elements : 0;
  return sum;
}

LayoutCost CostOfLayout(const TrainingSetup& setup, const engine::ParallelOptions& options, const Machine* machine,
                        int tensor_rank) {
  PartDivision division{.tensor = options.tensor,
                        .tensor_rank = tensor_rank,
                        .sequence = options.sequence && options.tensor > 1,
                        .recompute = options.recompute,
                        .is_block = true};
  const auto cost = [&](const std::vector<Layer>& part) { return CostOf(part, setup, division, machine); };
  LayoutCost costs;
  std::vector<const std::vector<Layer>*> kinds;
  for (const std::vector<Layer>& kind : setup.model.marked_blocks) kinds.push_back(&kind);
  if (kinds.empty()) kinds.push_back(&setup.model.block);
  for (const std::vector<Layer>* kind : kinds) costs.blocks.push_back({.once = cost(*kind)});
  division.recompute = Recompute::kNone;
  division.again = true;
  for (std::size_t i = 0; i < kinds.size(); ++i) costs.blocks[i].again = cost(*kinds[i]);
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
  std::vector<PartGroups> blocks;
  for (const BlockCost& block : cost.blocks) blocks.push_back(GroupsOf(block.once, false, parts));
  const PartGroups head = GroupsOf(is_divided ? cost.head_with_table : cost.head, shares_table, parts);
  for (std::size_t i = 0; i < stages.size(); ++i) {
    RankShare& share = shares[i % shares.size()];
    share.blocks += stages[i].count();
    share.kinds.resize(blocks.size());
    std::vector<std::size_t>& kinds = share.stage_kinds.emplace_back();
    for (std::int64_t block = stages[i].first; block < stages[i].last; ++block) {
      kinds.push_back(setup.model.KindOf(block));
      BlockCount& count = share.kinds[kinds.back()];
      ++count.all;
      if (options.recompute == Recompute::kFull && block % options.recompute_every == 0) ++count.recomputed;
    }
    if (options.recompute != Recompute::kFull) continue;
    if (stages[i].count() > 0 && stages[i].first % options.recompute_every == 0) ++share.recomputed_first;
    if (stages[i].count() > 1 && options.recompute_every == 1) ++share.recomputed_pairs;
  }
  for (std::size_t i = 0; i < shares.size(); ++i) {
    RankShare& share = shares[i];
    share.rank = static_cast<int>(i);
    share.embeds = i == 0;
    share.predicts = i + 1 == shares.size();
    share.head_uses_embedding = !is_divided && setup.model.tied();
    share.block_groups = blocks;
    if (share.embeds) share.embedding_groups = embedding;
    if (share.predicts) {
      share.head = is_divided ? &cost.head_with_table : &cost.head;
      share.head_groups = head;
    }
    if (shares_table && (share.embeds || share.predicts)) share.shared_table = TrainedTable(cost.embedding);
    const auto add = [&](const PartGroups& part, std::int64_t count) {
      if (count == 0) return;
      share.elements += count * part.total();
      share.trained += count * part.trained();
      share.largest_part = std::max(share.largest_part, part.total());
      share.largest_trained = std::max(share.largest_trained, part.trained());
    };
    add(share.embedding_groups, 1);
    for (std::size_t kind = 0; kind < blocks.size(); ++kind) {
      add(blocks[kind], share.kinds[kind].all);
      share.quantized_bytes += share.kinds[kind].all * cost.blocks[kind].once.quantized_bytes;
      share.recomputed += share.kinds[kind].recomputed;
    }
    add(share.head_groups, 1);
  }
  return shares;
}

std::int64_t InputBytes(const TrainingSetup& setup, const Layout& layout, const RankShare& share) {
  const bool divides_tokens = layout.options.sequence && layout.options.tensor > 1;
  const std::int64_t rows = setup.micro_tokens() / (divides_tokens ? layout.options.tensor : 1);
  const std::int64_t stream = rows * setup.model.hidden_size * setup.element_bytes();
  std::int64_t inputs = setup.model.stream * share.recomputed - (setup.model.stream - 1) * share.recomputed_first;
  if (setup.model.adds_once) inputs -= share.recomputed_pairs;  // both have the same residual stream
  return inputs * stream;
}

std::int64_t KeptByBlocks(const LayoutCost& cost, const RankShare& share) {
  std::int64_t kept = 0;
  for (std::size_t kind = 0; kind < share.kinds.size(); ++kind) {
    kept += (share.kinds[kind].all - share.kinds[kind].recomputed) * cost.blocks[kind].once.kept_bytes;
  }
  return kept;
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
