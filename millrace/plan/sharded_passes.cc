#include "millrace/plan/sharded_passes.h"

#include <algorithm>
#include <deque>
#include <utility>
#include <variant>
#include <vector>

#include "millrace/engine/layout/block_pool.h"
#include "millrace/engine/layout/pipeline_passes.h"

namespace millrace::plan {
namespace {

using engine::PassKind;

constexpr std::size_t kUsesAhead = 2;  // engine::DataExchange keeps groups that are used so soon again
/// Blocks at either end of a stage that are followed one by one: those of which a use may be so soon. If all of a stage
/// are alike, one of those between them is followed for all.
constexpr std::size_t kEndBlocks = 3;
constexpr std::int64_t kWaitingGradientBytes = 4;

class PassFollower {
 public:
  /// `reshard`: groups are freed behind forward passes, too.
  PassFollower(const Layout& layout, const RankShare& share, const std::vector<engine::PipelinePass>& passes,
               bool reshard, std::int64_t element_bytes = 0)
      : gathers_(layout.options.zero == 3),
        reshard_(reshard),
        sends_copies_(layout.options.reduce_in_bf16),
        element_bytes_(element_bytes) {
    MakeStages(share);
    MakeUses(passes);
  }

  /// Follows a step, or an evaluation.
  ShardedPasses Run() {
    for (const PartPass& pass : passes_) {
      for (const std::size_t group : parts_[pass.part].groups) Do(pass.moment, groups_[group]);
    }
    return result_;
  }
  /// Returns the bytes of the pool when further steps add nothing to it. In the first step, the exchange does not know
  /// yet what comes next.
  std::int64_t RunUntilPoolIsFull() {
    for (Group& group : groups_) {  // they are initialized one by one
      TakeValues(group);
      GiveValues(group);
    }
    looks_ahead_ = false;
    for (std::int64_t before = -1; before != pool_.bytes();) {
      before = looks_ahead_ ? pool_.bytes() : -1;
      Run();
      EndStep();
      looks_ahead_ = true;
    }
    return pool_.bytes();
  }

 private:
  using Pool = engine::BlockPool<std::monostate>;
  enum class Moment { kBeforeForward, kAfterForward, kBeforeBackward, kAfterBackward };
  struct Group {
    std::int64_t elements = 0;
    bool trains = true;
    std::int64_t times = 1;  ///< groups that it stands for
    int parts = 0, users = 0, forwards_ahead = 0, open_backwards = 0, backwards = 0;
    bool has_values = false, has_gradients = false;
    Pool::Block values = {}, gradients = {};
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
        BringValues(group);
        return TakeGradients(group);
      case Moment::kAfterBackward:
        --group.forwards_ahead;
        LetValuesGo(group, reshard_ || group.forwards_ahead == 0);
        ++group.backwards;
        if (--group.open_backwards == 0 && group.backwards % group.parts == 0) {
          if (group.trains) Scatter(group);
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
    TakeValues(group);
    if (gathers_) Count(result_.gathers, group);
  }
  void BringValues(Group& group) {
    ++used_;
    ++group.users;
    Gather(group);
    if (looks_ahead_ && used_ < uses_.size()) Gather(groups_[uses_[used_]]);
  }
  void LetValuesGo(Group& group, bool may_free) {
    if (--group.users > 0 || !may_free) return;
    for (std::size_t i = used_; looks_ahead_ && i < std::min(used_ + kUsesAhead, uses_.size()); ++i) {
      if (&groups_[uses_[i]] == &group) return;
    }
    group.has_values = false;
    GiveValues(group);
  }
  /// The scatter before this one ends, and its gradients are freed. Those of a scatter of copies are not needed then.
  void Scatter(Group& group) {
    Count(result_.scatters, group);
    if (scattering_ != nullptr) GiveGradients(*scattering_);
    scattering_ = &group;
    if (sends_copies_) GiveGradients(group);
  }

  void EndStep() {
    scattering_ = nullptr;
    used_ = 0;
    for (Group& group : groups_) {
      GiveGradients(group);
      if (std::exchange(group.has_values, false)) GiveValues(group);
      group.users = group.forwards_ahead = group.open_backwards = group.backwards = 0;
    }
  }

  // Memory.
  static Pool::Block Take(Pool& pool, std::int64_t bytes) {
    return pool.Take(bytes, [](std::int64_t) { return std::monostate(); });
  }
  void TakeValues(Group& group) {
    if (gathers_ && group.elements > 0) group.values = Take(pool_, group.elements * element_bytes_);
  }
  void GiveValues(Group& group) {
    if (gathers_ && group.elements > 0) pool_.Give(std::exchange(group.values, {}));
  }
  void TakeGradients(Group& group) {
    if (scattering_ == &group) {  // those of the micro-batch before
      GiveGradients(group);
      scattering_ = nullptr;
    }
    if (!group.trains || group.elements == 0 || std::exchange(group.has_gradients, true)) return;
    group.gradients = Take(pool_, group.elements * kWaitingGradientBytes);
  }
  void GiveGradients(Group& group) {
    if (std::exchange(group.has_gradients, false)) pool_.Give(std::exchange(group.gradients, {}));
  }

  const bool gathers_, reshard_, sends_copies_;
  const std::int64_t element_bytes_;
  std::deque<Group> groups_;
  std::vector<Part> parts_;
  std::vector<std::vector<std::size_t>> stages_;  ///< parts of each stage of the rank, in the order of a forward pass
  std::vector<PartPass> passes_;
  std::vector<std::size_t> uses_;  ///< groups, in the order in which passes begin to use them
  std::size_t used_ = 0;
  bool looks_ahead_ = true;
  Group* scattering_ = nullptr;  ///< whose gradients are on their way
  Pool pool_;
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

std::int64_t PooledBytes(const Layout& layout, const RankShare& share, std::int64_t element_bytes) {
  engine::PipelineShape shape = ShapeOf(layout);
  shape.micro_batches = std::min(shape.micro_batches, 2 * shape.stages() + 6);  // later ones find the same blocks
  return PassFollower(layout, share, engine::TrainingPasses(shape, share.rank), layout.options.reshard, element_bytes)
      .RunUntilPoolIsFull();
}

ShardedPasses::Count GathersOfEvaluation(const Layout& layout, const RankShare& share) {
  return PassFollower(layout, share, engine::EvaluationPasses(ShapeOf(layout)), /*reshard=*/true).Run().gathers;
}

}  // namespace millrace::plan
