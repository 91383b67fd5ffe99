// The arrangement of a job's ranks along named axes of parallelism. Arithmetic only: no communication.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/result.h"

namespace millrace::engine {

/// The axes of a mesh. Ranks along kPipeline hold different layers. Ranks along kReplica and kShard see different
/// samples; those along kShard also divide optimizer state, gradients or parameters between them (ZeRO, FSDP), and
/// kReplica repeats that (hybrid sharding). Ranks along kTensor divide single layers.
enum class MeshAxis { kPipeline, kReplica, kShard, kTensor };
inline constexpr int kMeshAxes = 4;
std::string_view MeshAxisName(MeshAxis axis);  ///< "pipeline", "replica", "shard", "tensor"

/// The number of ranks along each axis.
struct MeshShape {
  int pipeline = 1, replica = 1, shard = 1, tensor = 1;
  int operator[](MeshAxis axis) const;
  std::int64_t ranks() const { return std::int64_t{1} * pipeline * replica * shard * tensor; }
  bool operator==(const MeshShape&) const = default;
};

/// Ranks 0 … shape.ranks()-1 as points of a grid. Immutable; a value type.
class Mesh {
 public:
  /// `placement` says which axis runs over neighbouring ranks: a permutation of "DPT", outermost axis first, as in
  /// SageMaker's model-parallel library; D (data) is replica, then shard. "cluster" is DPT: the ranks of a tensor group
  /// are neighbours, so they share a machine. "spread" is TPD.
  /// Errors: kInvalidArgument if an extent is below 1, if the shape does not have `ranks` ranks (the message has the
  /// arithmetic), or if the placement is none of these.
  static Result<Mesh> Make(MeshShape shape, int ranks, std::string_view placement = "cluster");

  const MeshShape& shape() const { return shape_; }
  int ranks() const { return static_cast<int>(shape_.ranks()); }
  /// REQUIRES: 0 <= rank < ranks().
  int Coordinate(int rank, MeshAxis axis) const;
  /// Returns the rank at these coordinates, in the order of MeshAxis.
  int RankAt(const std::array<int, kMeshAxes>& coordinates) const;
  /// Returns the ranks that differ from `rank` at most along `axes`. They are ordered by their coordinates along the
  /// axes, in the order of MeshAxis; so the result is the same for each of its members.
  std::vector<int> Group(int rank, std::initializer_list<MeshAxis> axes) const;
  /// Returns the position of a rank among those that see different samples: replica · shard extent + shard.
  int DataRank(int rank) const;
  int data_ranks() const { return shape_.replica * shape_.shard; }
  /// Returns the ranks' groups along `axes`, each as Group() returns it, ordered by their smallest rank.
  std::vector<std::vector<int>> Groups(std::initializer_list<MeshAxis> axes) const;
  /// Returns for people how the ranks lie: "pipeline 2 × replica 1 × shard 2 × tensor 2".
  std::string ToText() const;

 private:
  Mesh(MeshShape shape, std::array<MeshAxis, kMeshAxes> order) : shape_(shape), order_(order) {}

  MeshShape shape_;
  std::array<MeshAxis, kMeshAxes> order_;  ///< outermost first
};

}  // namespace millrace::engine
