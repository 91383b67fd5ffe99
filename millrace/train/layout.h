// The groups of ranks that a run's layout makes of the job's ranks.
#pragma once

#include <memory>

#include "millrace/base/result.h"
#include "millrace/engine/parallel/collective.h"
#include "millrace/engine/layout/mesh.h"
#include "millrace/engine/parallel/tensor_ranks.h"
#include "millrace/train/options.h"

namespace millrace::train {

/// This rank's place in the layout, and its groups. Borrows the group of all ranks.
class RankLayout {
 public:
  /// Collective over all ranks. Data parallelism takes the ranks that tensor parallelism leaves.
  /// Errors: kInvalidArgument, with the arithmetic, if the ranks do not divide; kUnavailable if a rank is lost.
  static Result<std::unique_ptr<RankLayout>> Make(engine::Collective& world, const ParallelOptions& options);

  engine::Collective& world() const { return world_; }
  /// The ranks that hold the same slices of the model and see other samples.
  engine::Collective& data() const { return data_ ? *data_ : world_; }
  engine::TensorRanks tensor() const { return {tensor_.get(), sequence_}; }
  const engine::Mesh& mesh() const { return mesh_; }

  int data_rank() const { return mesh_.DataRank(world_.rank()); }
  int data_ranks() const { return mesh_.data_ranks(); }
  /// Returns whether this rank counts the losses and labels of its samples. One rank of each tensor group does.
  bool counts_samples() const { return tensor().rank() == 0; }

 private:
  RankLayout(engine::Collective& world, engine::Mesh mesh, bool sequence)
      : world_(world), mesh_(std::move(mesh)), sequence_(sequence) {}

  engine::Collective& world_;
  const engine::Mesh mesh_;
  const bool sequence_;
  std::unique_ptr<engine::Collective> data_, tensor_;  ///< null: one rank's own group, or all ranks
};

}  // namespace millrace::train
