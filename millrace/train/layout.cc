#include "millrace/train/layout.h"

#include <fmt/format.h>

#include <array>
#include <initializer_list>
#include <string>

#include "millrace/base/hash/random.h"

namespace millrace::train {

using engine::MeshAxis;
using Group = std::unique_ptr<engine::Collective>;

namespace {

/// Returns the group of the ranks along some axes; null if it has one rank.
Result<Group> SplitAlong(engine::Collective& world, const engine::Mesh& mesh, std::string name,
                         std::initializer_list<MeshAxis> axes) {
  const std::vector<int> members = mesh.Group(world.rank(), axes);
  if (members.size() == 1) return nullptr;
  return world.Split(std::move(name), members);
}

/// Every rank computes its groups from its options. If they differ, ranks would wait for each other in vain.
Status CheckSameOptions(engine::Collective& world, const engine::Mesh& mesh, const engine::ParallelOptions& options) {
  const std::string text = fmt::format(
      "{} {} {} {} {} {} {} {} {} {} {} {}", mesh.ToText(), options.placement, options.sequence,
      static_cast<int>(options.schedule), options.virtual_stages, options.zero, options.reshard, options.reduce_in_bf16,
      options.overlap, static_cast<int>(options.recompute), options.recompute_every, options.offload_activations);
  std::uint64_t hash = 0;
  for (const char c : text) hash = Mix64(hash ^ static_cast<unsigned char>(c));
  const at::Tensor mine = at::tensor({static_cast<std::int64_t>(hash)}, at::kLong);
  const at::Tensor all = at::empty({world.size()}, at::kLong);
  MR_TRY(world.AllGather(all, mine));
  for (int rank = 0; rank < world.size(); ++rank) {
    if (all[rank].item<std::int64_t>() == all[0].item<std::int64_t>()) continue;
    return Fail(Code::kInvalidArgument,
                "rank {} was started with another train.parallel than rank 0: start all ranks with the same job file",
                rank);
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<RankLayout>> RankLayout::Make(engine::Collective& world,
                                                     const engine::ParallelOptions& options) {
  const engine::MeshShape shape = MR_TRY(engine::ShapeOf(options, world.size()));
  const engine::Mesh mesh = MR_TRY(engine::Mesh::Make(shape, world.size(), options.placement));
  if (world.size() > 1) MR_TRY(CheckSameOptions(world, mesh, options));
  std::unique_ptr<RankLayout> layout(new RankLayout(world, mesh, options));
  RankLayout& l = *layout;
  l.tensor_ = MR_TRY(SplitAlong(world, mesh, "tensor", {MeshAxis::kTensor}));
  l.pipeline_ = MR_TRY(SplitAlong(world, mesh, "pipeline", {MeshAxis::kPipeline}));
  l.shard_ = MR_TRY(SplitAlong(world, mesh, "shard", {MeshAxis::kShard}));
  l.replica_ = MR_TRY(SplitAlong(world, mesh, "replica", {MeshAxis::kReplica}));
  l.stage_ = MR_TRY(SplitAlong(world, mesh, "stage", {MeshAxis::kShard, MeshAxis::kTensor}));
  l.model_ = MR_TRY(SplitAlong(world, mesh, "model", {MeshAxis::kPipeline, MeshAxis::kShard, MeshAxis::kTensor}));
  const std::vector<int> stages = mesh.Group(world.rank(), {MeshAxis::kPipeline});
  const bool at_an_end = world.rank() == stages.front() || world.rank() == stages.back();
  if (stages.size() > 1 && at_an_end) {
    l.tied_ = MR_TRY(world.Split("tied", std::array{stages.front(), stages.back()}));
  }
  return layout;
}

void RankLayout::Abort(const Error& cause) {
  for (const Group* group : {&tensor_, &pipeline_, &shard_, &replica_, &stage_, &model_, &tied_}) {
    if (*group) (*group)->Abort(cause);
  }
  world_.Abort(cause);
}

engine::StateRanks RankLayout::state() const {
  return {.shard = shard_.get(),
          .replica = replica_.get(),
          .tensor = tensor(),
          .stage = stage_.get(),
          .model = model_.get(),
          .tied = tied_.get()};
}

engine::Sharding RankLayout::sharding() const {
  return {
      .ranks = mesh_.shape().shard, .rank = mesh_.Coordinate(world_.rank(), MeshAxis::kShard), .zero = options_.zero};
}

engine::ModelShare RankLayout::ShareOf(const engine::ModelConfig& config, std::int64_t length) const {
  engine::ModelShare share{.ranks = tensor(), .sharding = sharding()};
  if (pipeline_ranks() > 1) {
    share.stages = engine::StagesOfRank(config, options_, length, pipeline_rank());
  }
  return share;
}

}  // namespace millrace::train
