// The groups of ranks that a run's layout makes of the job's ranks.
#pragma once

#include <cstdint>
#include <memory>

#include "millrace/base/result.h"
#include "millrace/engine/layout/mesh.h"
#include "millrace/engine/layout/parallel_options.h"
#include "millrace/engine/models/model.h"
#include "millrace/engine/parallel/collective.h"
#include "millrace/engine/parallel/tensor_ranks.h"
#include "millrace/engine/parameters/sharding.h"
#include "millrace/engine/parameters/state_ranks.h"

namespace millrace::train {

/// This rank's place in the layout, and its groups. Borrows the group of all ranks.
class RankLayout {
 public:
  /// Collective over all ranks. Errors: those of engine::ShapeOf and engine::Mesh; kInvalidArgument if the ranks were
  /// given different options; kUnavailable if a rank is lost.
  static Result<std::unique_ptr<RankLayout>> Make(engine::Collective& world, const engine::ParallelOptions& options);

  const engine::ParallelOptions& options() const { return options_; }
  const engine::Mesh& mesh() const { return mesh_; }
  engine::Collective& world() const { return world_; }
  engine::TensorRanks tensor() const { return {tensor_.get(), options_.sequence}; }
  /// The ranks that have the other stages of the model, in their order; null: one rank has all of it.
  engine::Collective* pipeline() const { return pipeline_.get(); }
  /// The groups over which parameters are divided or repeated.
  engine::StateRanks state() const;
  engine::Sharding sharding() const;
  /// Returns the share of a model of this configuration that this rank has. Stages are balanced for sequences of
  /// `length` tokens.
  engine::ModelShare ShareOf(const engine::ModelConfig& config, std::int64_t length) const;

  /// Gives up all groups, the one of all ranks too: notifies their ranks that this rank failed with `cause`.
  void Abort(const Error& cause);

  int data_rank() const { return mesh_.DataRank(world_.rank()); }
  int data_ranks() const { return mesh_.data_ranks(); }
  int pipeline_rank() const { return mesh_.Coordinate(world_.rank(), engine::MeshAxis::kPipeline); }
  int pipeline_ranks() const { return mesh_.shape().pipeline; }
  /// Returns whether this rank counts its samples. One of those that share them does: the one that knows their loss.
  bool counts_samples() const { return tensor().rank() == 0 && pipeline_rank() + 1 == pipeline_ranks(); }

 private:
  RankLayout(engine::Collective& world, engine::Mesh mesh, engine::ParallelOptions options)
      : world_(world), mesh_(mesh), options_(std::move(options)) {}

  engine::Collective& world_;
  const engine::Mesh mesh_;
  const engine::ParallelOptions options_;
  // Null: of one rank.
  std::unique_ptr<engine::Collective> tensor_, pipeline_, shard_, replica_, stage_, model_, tied_;
};

}  // namespace millrace::train
