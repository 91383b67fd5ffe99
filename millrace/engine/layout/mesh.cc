#include "millrace/engine/layout/mesh.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace millrace::engine {
namespace {

constexpr std::array kAxes{MeshAxis::kPipeline, MeshAxis::kReplica, MeshAxis::kShard, MeshAxis::kTensor};

/// Returns the axes in the order of a placement, outermost first, or nothing if the placement is none.
std::optional<std::array<MeshAxis, kMeshAxes>> AxisOrder(std::string_view placement) {
  if (placement == "cluster") placement = "DPT";
  if (placement == "spread") placement = "TPD";
  std::string sorted(placement);
  std::ranges::sort(sorted);
  if (sorted != "DPT") return std::nullopt;
  std::array<MeshAxis, kMeshAxes> order;
  std::size_t next = 0;
  for (const char letter : placement) {
    if (letter == 'D') {
      order[next++] = MeshAxis::kReplica;
      order[next++] = MeshAxis::kShard;
    } else {
      order[next++] = letter == 'P' ? MeshAxis::kPipeline : MeshAxis::kTensor;
    }
  }
  return order;
}

}  // namespace

std::string_view MeshAxisName(MeshAxis axis) {
  switch (axis) {
    case MeshAxis::kPipeline:
      return "pipeline";
    case MeshAxis::kReplica:
      return "replica";
    case MeshAxis::kShard:
      return "shard";
    case MeshAxis::kTensor:
      return "tensor";
  }
  std::unreachable();
}

int MeshShape::operator[](MeshAxis axis) const {
  switch (axis) {
    case MeshAxis::kPipeline:
      return pipeline;
    case MeshAxis::kReplica:
      return replica;
    case MeshAxis::kShard:
      return shard;
    case MeshAxis::kTensor:
      return tensor;
  }
  std::unreachable();
}

Result<Mesh> Mesh::Make(MeshShape shape, int ranks, std::string_view placement) {
  for (const MeshAxis axis : kAxes) {
    if (shape[axis] < 1) {
      return Fail(Code::kInvalidArgument, "the mesh has {} ranks along {}: at least 1 is needed", shape[axis],
                  MeshAxisName(axis));
    }
  }
  // Multiplied from the left, the product stops at the first factor that exceeds `ranks`: it cannot overflow.
  std::int64_t product = 1;
  std::size_t factors = 0;
  while (factors < kAxes.size() && product <= ranks) product *= shape[kAxes[factors++]];
  if (product != ranks) {
    return Fail(Code::kInvalidArgument,
                "{} make {}{} ranks, but the job has {}; change train.parallel, or how many ranks run",
                Mesh(shape, {}).ToText(), factors < kAxes.size() ? "at least " : "", product, ranks);
  }
  const auto order = AxisOrder(placement);
  if (!order) {
    return Fail(Code::kInvalidArgument,
                "placement \"{}\": expected \"cluster\", \"spread\" or each of the letters D, P and T once", placement);
  }
  return Mesh(shape, *order);
}

int Mesh::Coordinate(int rank, MeshAxis axis) const {
  for (auto inner = order_.rbegin(); *inner != axis; ++inner) rank /= shape_[*inner];
  return rank % shape_[axis];
}

int Mesh::RankAt(const std::array<int, kMeshAxes>& coordinates) const {
  int rank = 0;
  for (const MeshAxis axis : order_) rank = rank * shape_[axis] + coordinates[static_cast<std::size_t>(axis)];
  return rank;
}

std::vector<int> Mesh::Group(int rank, std::initializer_list<MeshAxis> axes) const {
  std::array<int, kMeshAxes> begin{}, extent{};  // of the group's part of the grid
  for (const MeshAxis axis : kAxes) {
    const auto i = static_cast<std::size_t>(axis);
    const bool varies = std::ranges::find(axes, axis) != axes.end();
    begin[i] = varies ? 0 : Coordinate(rank, axis);
    extent[i] = varies ? shape_[axis] : 1;
  }
  std::vector<int> group;
  for (int pipeline = 0; pipeline < extent[0]; ++pipeline) {
    for (int replica = 0; replica < extent[1]; ++replica) {
      for (int shard = 0; shard < extent[2]; ++shard) {
        for (int tensor = 0; tensor < extent[3]; ++tensor) {
          group.push_back(RankAt({begin[0] + pipeline, begin[1] + replica, begin[2] + shard, begin[3] + tensor}));
        }
      }
    }
  }
  return group;
}

int Mesh::DataRank(int rank) const {
  return Coordinate(rank, MeshAxis::kReplica) * shape_.shard + Coordinate(rank, MeshAxis::kShard);
}

std::vector<std::vector<int>> Mesh::Groups(std::initializer_list<MeshAxis> axes) const {
  std::vector<std::vector<int>> groups;
  std::vector<bool> grouped(static_cast<std::size_t>(ranks()));
  for (int rank = 0; rank < ranks(); ++rank) {
    if (grouped[rank]) continue;
    groups.push_back(Group(rank, axes));
    for (const int member : groups.back()) grouped[member] = true;
  }
  return groups;
}

std::string Mesh::ToText() const {
  std::string text;
  for (const MeshAxis axis : kAxes) {
    text += fmt::format("{}{} {}", text.empty() ? "" : " × ", MeshAxisName(axis), shape_[axis]);
  }
  return text;
}

}  // namespace millrace::engine
