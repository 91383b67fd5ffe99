#include "millrace/engine/layout/mesh.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

namespace millrace::engine {
namespace {

constexpr std::array kTestAxes{MeshAxis::kPipeline, MeshAxis::kReplica, MeshAxis::kShard, MeshAxis::kTensor};
constexpr std::array kPlacements{"DPT", "DTP", "PDT", "PTD", "TDP", "TPD"};
constexpr MeshShape kShapes[] = {{}, {.pipeline = 2, .tensor = 3}, {2, 3, 2, 2}, {1, 4, 1, 2}, {3, 1, 5, 1}};

Mesh MakeMesh(MeshShape shape, std::string_view placement) {
  return Mesh::Make(shape, static_cast<int>(shape.ranks()), placement).value();
}

TEST(Mesh, RankAtInvertsCoordinate) {
  for (const MeshShape& shape : kShapes) {
    for (const char* placement : kPlacements) {
      const Mesh mesh = MakeMesh(shape, placement);
      for (int rank = 0; rank < mesh.ranks(); ++rank) {
        std::array<int, kMeshAxes> point;
        for (std::size_t i = 0; i < kTestAxes.size(); ++i) {
          point[i] = mesh.Coordinate(rank, kTestAxes[i]);
          EXPECT_GE(point[i], 0);
          EXPECT_LT(point[i], shape[kTestAxes[i]]);
        }
        EXPECT_EQ(mesh.RankAt(point), rank) << placement << " " << mesh.ToText();
      }
    }
  }
}

TEST(Mesh, GroupsPartitionTheRanks) {
  for (const MeshShape& shape : kShapes) {
    for (const char* placement : kPlacements) {
      const Mesh mesh = MakeMesh(shape, placement);
      for (const auto& axes : std::initializer_list<std::initializer_list<MeshAxis>>{
               {},
               {MeshAxis::kTensor},
               {MeshAxis::kReplica, MeshAxis::kShard},
               {MeshAxis::kShard, MeshAxis::kReplica},
               {MeshAxis::kPipeline, MeshAxis::kReplica, MeshAxis::kShard, MeshAxis::kTensor}}) {
        std::int64_t group_size = 1;
        for (const MeshAxis axis : axes) group_size *= shape[axis];
        std::vector<int> seen;
        int smallest_before = -1;
        for (const std::vector<int>& group : mesh.Groups(axes)) {
          EXPECT_EQ(static_cast<std::int64_t>(group.size()), group_size);
          EXPECT_GT(*std::ranges::min_element(group), smallest_before);
          smallest_before = *std::ranges::min_element(group);
          for (const int member : group) EXPECT_EQ(mesh.Group(member, axes), group);
          seen.insert(seen.end(), group.begin(), group.end());
        }
        std::ranges::sort(seen);
        std::vector<int> all(static_cast<std::size_t>(mesh.ranks()));
        std::iota(all.begin(), all.end(), 0);
        EXPECT_EQ(seen, all);
      }
    }
  }
}

TEST(Mesh, MembersOfAGroupDifferOnlyAlongItsAxes) {
  const Mesh mesh = MakeMesh({2, 3, 2, 2}, "PDT");
  for (int rank = 0; rank < mesh.ranks(); ++rank) {
    for (const int member : mesh.Group(rank, {MeshAxis::kShard, MeshAxis::kTensor})) {
      EXPECT_EQ(mesh.Coordinate(member, MeshAxis::kPipeline), mesh.Coordinate(rank, MeshAxis::kPipeline));
      EXPECT_EQ(mesh.Coordinate(member, MeshAxis::kReplica), mesh.Coordinate(rank, MeshAxis::kReplica));
    }
  }
}

TEST(Mesh, PlacementChoosesTheNeighbours) {
  const MeshShape shape{.pipeline = 2, .shard = 2, .tensor = 2};
  const Mesh cluster = MakeMesh(shape, "cluster");
  EXPECT_EQ(cluster.Group(0, {MeshAxis::kTensor}), (std::vector{0, 1}));
  EXPECT_EQ(cluster.Group(0, {MeshAxis::kPipeline}), (std::vector{0, 2}));
  EXPECT_EQ(cluster.Group(0, {MeshAxis::kShard}), (std::vector{0, 4}));
  const Mesh spread = MakeMesh(shape, "spread");
  EXPECT_EQ(spread.Group(0, {MeshAxis::kTensor}), (std::vector{0, 4}));
  EXPECT_EQ(spread.Group(0, {MeshAxis::kPipeline}), (std::vector{0, 2}));
  EXPECT_EQ(spread.Group(0, {MeshAxis::kShard}), (std::vector{0, 1}));
  EXPECT_EQ(MakeMesh(shape, "PTD").Group(0, {MeshAxis::kPipeline}), (std::vector{0, 4}));
}

TEST(Mesh, DataRanksNumberTheSamples) {
  for (const char* placement : kPlacements) {
    const Mesh mesh = MakeMesh({2, 3, 2, 2}, placement);
    EXPECT_EQ(mesh.data_ranks(), 6);
    for (int rank = 0; rank < mesh.ranks(); ++rank) {
      std::set<int> data_ranks;
      const auto group = mesh.Group(rank, {MeshAxis::kReplica, MeshAxis::kShard});
      for (std::size_t i = 0; i < group.size(); ++i) EXPECT_EQ(mesh.DataRank(group[i]), static_cast<int>(i));
      for (const int same : mesh.Group(rank, {MeshAxis::kPipeline, MeshAxis::kTensor})) {
        data_ranks.insert(mesh.DataRank(same));
      }
      EXPECT_EQ(data_ranks.size(), 1u);
    }
  }
}

TEST(Mesh, ErrorsHaveTheArithmetic) {
  const auto text = [](const Result<Mesh>& mesh) {
    EXPECT_FALSE(mesh);
    EXPECT_EQ(mesh.error().code(), Code::kInvalidArgument);
    return mesh.error().message();
  };
  EXPECT_EQ(text(Mesh::Make({2, 1, 2, 2}, 6)),
            "pipeline 2 × replica 1 × shard 2 × tensor 2 make 8 ranks, but the job has 6; change train.parallel, or "
            "how many ranks run");
  EXPECT_EQ(text(Mesh::Make({.shard = 0}, 4)), "the mesh has 0 ranks along shard: at least 1 is needed");
  EXPECT_EQ(text(Mesh::Make({2'000'000'000, 2'000'000'000, 2'000'000'000, 2}, 4)),
            "pipeline 2000000000 × replica 2000000000 × shard 2000000000 × tensor 2 make at least 2000000000 ranks, "
            "but the job has 4; change train.parallel, or how many ranks run");
  for (const char* wrong : {"", "DP", "DPTT", "DDT", "dpt", "clusters"}) {
    EXPECT_NE(text(Mesh::Make({}, 1, wrong)).find(std::string("placement \"") + wrong + "\""), std::string::npos);
  }
}

TEST(Mesh, ToTextNamesEveryAxis) {
  EXPECT_EQ(MakeMesh({2, 1, 2, 2}, "cluster").ToText(), "pipeline 2 × replica 1 × shard 2 × tensor 2");
}

}  // namespace
}  // namespace millrace::engine
