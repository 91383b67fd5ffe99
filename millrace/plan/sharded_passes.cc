#include "millrace/plan/sharded_passes.h"

#include <algorithm>
#include <deque>
#include <vector>

#include "millrace/engine/layout/pipeline_passes.h"

namespace millrace::plan {
namespace {

using engine::PassKind;

constexpr std::size_t kUsesAhead = 2;  // engine::DataExchange keeps groups that are used so soon again
/// Blocks at either end of a stage that are followed one by one: those of which a use may be so soon. If all of a stage
/// are alike, one of those between them is followed for all.
constexpr std::size_t kEndBlocks = 3;

class PassFollower {
 public:
  /// `reshard`: groups are freed behind forward passes, too.
  PassFollower(const Layout& layout, const RankShare& share, const std::vector<engine::PipelinePass>& passes,
               bool reshard)
      : gathers_(layout.options.zero == 3), reshard_(reshard) {
    MakeStages(share);
    MakeUses(passes);
  }

  ShardedPasses Run() {
    for (const PartPass& pass : passes_) {
      for (const std::size_t group : parts_[pass.part].groups) Do(pass.moment, groups_[group]);
    }
    return result_;
  }

 private:
  enum class Moment { kBeforeForward, kAfterForward, kBeforeBackward, kAfterBackward };
  struct Group {
    std::int64_t elements = 0;
    bool trains = true;
    std::int64_t times = 1;  ///< groups that it stands for
    int parts = 0, users = 0, forwards_ahead = 0, open_backwards = 0, backwards = 0;
    bool has_values = false;
  };
  struct Part {
    std::vector<std::size_t> groups;  ///< that it uses
  };
  struct PartPass {
    Moment moment;
    std::size_t part;
  };

  std::size_t AddPart(const PartGroups& own, std::int64_t times = 1) {
    Part part;
    for (const GroupSize& group : own.all()) {
      part.groups.push_back(groups_.size());
      groups_.push_back({.elements = group.elements, .trains = group.trains, .times = times, .parts = 1});
    }
    parts_.push_back(std::move(part));
    return parts_.size() - 1;
  }

  void MakeStages(const RankShare& share) {
    for (std::size_t i = 0; i < share.stage_kinds.size(); ++i) {
      std::vector<std::size_t>& stage = stages_.emplace_back();
      if (share.embeds && i == 0) stage.push_back(AddPart(share.embedding_groups));
      const std::vector<std::size_t>& kinds = share.stage_kinds[i];
      const std::size_t blocks = kinds.size();
      const bool are_alike = std::ranges::count(kinds, kinds.empty() ? 0 : kinds.front()) == std::ssize(kinds);
      for (std::size_t block = 0; block < blocks;) {
        const bool stands_for_many = are_alike && block == kEndBlocks && blocks > 2 * kEndBlocks;
        const std::size_t times = stands_for_many ? blocks - 2 * kEndBlocks : 1;
        stage.push_back(AddPart(share.block_groups[kinds[block]], static_cast<std::int64_t>(times)));
        block += times;
      }
      if (!share.predicts || i + 1 < share.stage_kinds.size()) continue;
      stage.push_back(AddPart(share.head_groups));
      if (!share.head_uses_embedding) continue;
      const std::size_t table = parts_.front().groups.front();
      parts_.back().groups.push_back(table);
      ++groups_[table].parts;
    }
  }

  void MakeUses(const std::vector<engine::PipelinePass>& passes) {
    for (const engine::PipelinePass& pass : passes) {
      const std::vector<std::size_t>& stage = stages_[static_cast<std::size_t>(pass.stage)];
      if (pass.kind == PassKind::kForward) {
        for (const std::size_t part : stage)
          AddPass(Moment::kBeforeForward, part), AddPass(Moment::kAfterForward, part);
        continue;
      }
      for (std::size_t i = stage.size(); i-- > 0;) {
        if (pass.kind != PassKind::kBackwardWeight) AddPass(Moment::kBeforeBackward, stage[i]);
        if (pass.kind != PassKind::kBackwardInput) AddPass(Moment::kAfterBackward, stage[i]);
      }
    }
  }
  void AddPass(Moment moment, std::size_t part) {
    passes_.push_back({moment, part});
    if (moment != Moment::kBeforeForward && moment != Moment::kBeforeBackward) return;
    uses_.insert(uses_.end(), parts_[part].groups.begin(), parts_[part].groups.end());
  }

  void Do(Moment moment, Group& group) {
    switch (moment) {
      case Moment::kBeforeForward:
        ++group.forwards_ahead;
        return BringValues(group);
      case Moment::kAfterForward:
        return LetValuesGo(group, reshard_);
      case Moment::kBeforeBackward:
        ++group.open_backwards;
        return BringValues(group);
      case Moment::kAfterBackward:
        --group.forwards_ahead;
        LetValuesGo(group, reshard_ || group.forwards_ahead == 0);
        ++group.backwards;
        if (--group.open_backwards == 0 && group.backwards % group.parts == 0) {
          if (group.trains) Count(result_.scatters, group);
        }
    }
  }

  static void Count(ShardedPasses::Count& count, const Group& group) {
    if (group.elements == 0) return;
    count.operations += group.times;
    count.elements += group.times * group.elements;
  }
  void Gather(Group& group) {
    if (group.has_values) return;
    group.has_values = true;
    if (gathers_) Count(result_.gathers, group);
  }
  void BringValues(Group& group) {
    ++used_;
    ++group.users;
    Gather(group);
    if (used_ < uses_.size()) Gather(groups_[uses_[used_]]);
  }
  void LetValuesGo(Group& group, bool may_free) {
    if (--group.users > 0 || !may_free) return;
    for (std::size_t i = used_; i < std::min(used_ + kUsesAhead, uses_.size()); ++i) {
      if (&groups_[uses_[i]] == &group) return;
    }
    group.has_values = false;
  }

  const bool gathers_, reshard_;
  std::deque<Group> groups_;
  std::vector<Part> parts_;
  std::vector<std::vector<std::size_t>> stages_;  ///< parts of each stage of the rank, in the order of a forward pass
  std::vector<PartPass> passes_;
  std::vector<std::size_t> uses_;  ///< groups, in the order in which passes begin to use them
  std::size_t used_ = 0;
  ShardedPasses result_;
};

engine::PipelineShape ShapeOf(const Layout& layout) {
  return {.schedule = layout.options.schedule,
          .ranks = layout.shape.pipeline,
          .virtual_stages = layout.options.virtual_stages,
          .micro_batches = static_cast<int>(layout.microbatches)};
}

}  // namespace

ShardedPasses RunShardedPasses(const Layout& layout, const RankShare& share) {
  return PassFollower(layout, share, engine::TrainingPasses(ShapeOf(layout), share.rank), layout.options.reshard).Run();
}

ShardedPasses::Count GathersOfEvaluation(const Layout& layout, const RankShare& share) {
  return PassFollower(layout, share, engine::EvaluationPasses(ShapeOf(layout)), /*reshard=*/true).Run().gathers;
}

}  // namespace millrace::plan
