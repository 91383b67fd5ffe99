#include "millrace/engine/layout/stage_division.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <tuple>

#include "millrace/engine/layout/pipeline_passes.h"

namespace millrace::engine {
namespace {

using Counts = std::vector<std::int64_t>;  ///< blocks of each stage

struct Pipeline {
  std::int64_t ranks = 1, virtual_stages = 1;
  std::int64_t stages() const { return ranks * virtual_stages; }
};
constexpr Pipeline kPipelines[] = {{1, 1}, {1, 2}, {2, 1}, {3, 1}, {4, 1}, {2, 2}, {2, 3}, {3, 2}};
constexpr double kHeads[] = {0, 0.4, 1, 1.5, 3.2, 20};

Counts Divide(std::int64_t blocks, double head, const Pipeline& pipeline) {
  Counts counts;
  std::int64_t end = 0;
  for (const BlockRange& stage : DivideBlocks(blocks, head, pipeline.ranks, pipeline.virtual_stages)) {
    EXPECT_EQ(stage.first, end);
    end = stage.last;
    counts.push_back(stage.count());
  }
  EXPECT_EQ(end, blocks);
  EXPECT_EQ(static_cast<std::int64_t>(counts.size()), pipeline.stages());
  return counts;
}

/// Calls `visit` with each way to divide blocks so that each stage has `least` of them or more.
void ForEachDivision(std::int64_t blocks, std::int64_t stages, std::int64_t least,
                     const std::function<void(const Counts&)>& visit, Counts begun = {}) {
  begun.push_back(0);
  const std::int64_t others = stages - static_cast<std::int64_t>(begun.size());
  for (std::int64_t count = others == 0 ? blocks : least; count <= blocks - others * least; ++count) {
    begun.back() = count;
    if (others == 0) {
      visit(begun);
    } else {
      ForEachDivision(blocks - count, stages, least, visit, begun);
    }
  }
}

double SlowestRank(const Counts& counts, double head, const Pipeline& pipeline) {
  std::vector<double> work(static_cast<std::size_t>(pipeline.ranks));
  work.back() = head;
  for (std::size_t i = 0; i < counts.size(); ++i) work[i % work.size()] += static_cast<double>(counts[i]);
  return *std::ranges::max_element(work);
}

TEST(DivideBlocks, NoDivisionHasACheaperSlowestRank) {
  for (const Pipeline& pipeline : kPipelines) {
    for (std::int64_t blocks = 0; blocks <= pipeline.stages() + 5; ++blocks) {
      for (const double head : kHeads) {
        const Counts mine = Divide(blocks, head, pipeline);
        const std::int64_t least = blocks >= pipeline.stages() ? 1 : 0;
        EXPECT_GE(*std::ranges::min_element(mine), least);
        const double slowest = SlowestRank(mine, head, pipeline);
        ForEachDivision(blocks, pipeline.stages(), least, [&](const Counts& other) {
          EXPECT_LE(slowest, SlowestRank(other, head, pipeline))
              << blocks << " blocks, head " << head << ", " << pipeline.ranks << " × " << pipeline.virtual_stages;
        });
      }
    }
  }
}

/// Returns the time of a step whose messages take none, in forward and backward passes of a block. A block goes
/// forward in 1/3; a head goes back in its forward pass, as the cross-entropy does.
double StepTime(const Counts& counts, double head, const Pipeline& pipeline, int micro_batches) {
  const PipelineShape shape{
      .schedule = pipeline.virtual_stages > 1 ? PipelineSchedule::kInterleaved : PipelineSchedule::k1F1B,
      .ranks = static_cast<int>(pipeline.ranks),
      .virtual_stages = static_cast<int>(pipeline.virtual_stages),
      .micro_batches = micro_batches};
  const int ranks = shape.ranks, last = shape.stages() - 1;
  std::vector<std::vector<PipelinePass>> passes;
  for (int rank = 0; rank < ranks; ++rank) passes.push_back(TrainingPasses(shape, rank));
  std::map<std::tuple<bool, int, int>, double> ends;  // by direction, stage and micro-batch
  std::vector<std::size_t> done(passes.size());
  std::vector<double> clocks(passes.size());
  for (bool moves = true; moves;) {
    moves = false;
    for (std::size_t rank = 0; rank < passes.size(); ++rank) {
      for (; done[rank] < passes[rank].size(); ++done[rank], moves = true) {
        const PipelinePass& pass = passes[rank][done[rank]];
        const bool forward = pass.kind == PassKind::kForward;
        const int stage = pass.stage * ranks + static_cast<int>(rank), before = forward ? stage - 1 : stage + 1;
        const auto needed = ends.find({forward, before, pass.micro_batch});
        if (before >= 0 && before <= last && needed == ends.end()) break;
        const double work = static_cast<double>(counts[static_cast<std::size_t>(stage)]) * (forward ? 1.0 : 2.0) / 3 +
                            (forward && stage == last ? head : 0);
        clocks[rank] = std::max(clocks[rank], needed == ends.end() ? 0 : needed->second) + work;
        ends[{forward, stage, pass.micro_batch}] = clocks[rank];
      }
    }
  }
  return *std::ranges::max_element(clocks);
}

TEST(DivideBlocks, SimulatedStepsAreNearlyTheFastest) {
  for (const Pipeline& pipeline : {Pipeline{2, 1}, {3, 1}, {4, 1}, {2, 2}, {3, 2}}) {
    for (const int groups : {1, 2, 6}) {
      double sum = 0, worst = 0;
      int cases = 0;
      for (const double head : {0.0, 0.6, 1.3, 2.5}) {
        for (std::int64_t blocks = pipeline.stages(); blocks <= pipeline.stages() + 4; ++blocks, ++cases) {
          const int micro_batches = groups * static_cast<int>(pipeline.ranks);
          double best = std::numeric_limits<double>::infinity();
          ForEachDivision(blocks, pipeline.stages(), 1, [&](const Counts& other) {
            best = std::min(best, StepTime(other, head, pipeline, micro_batches));
          });
          const double over = StepTime(Divide(blocks, head, pipeline), head, pipeline, micro_batches) / best;
          sum += over;
          worst = std::max(worst, over);
        }
      }
      EXPECT_LE(sum / cases, groups == 1 ? 1.05 : 1.02) << pipeline.ranks << " × " << pipeline.virtual_stages;
      EXPECT_LE(worst, groups == 1 ? 1.25 : 1.1) << pipeline.ranks << " × " << pipeline.virtual_stages;
    }
  }
}

TEST(DivideBlocks, TiesGoToTheFirstRanksAndLaterStages) {
  EXPECT_EQ(Divide(10, 0, {4, 1}), (Counts{3, 3, 3, 1}));
  EXPECT_EQ(Divide(32, 2.4, {4, 1}), (Counts{9, 9, 9, 5}));  // (9, 9, 8, 6) has the same slowest rank
  EXPECT_EQ(Divide(10, 0, {2, 2}), (Counts{2, 2, 3, 3}));
  EXPECT_EQ(Divide(8, 2, {2, 2}), (Counts{2, 2, 3, 1}));
  EXPECT_EQ(Divide(5, 0, {7, 1}), (Counts{1, 1, 1, 1, 1, 0, 0}));
}

}  // namespace
}  // namespace millrace::engine
