// Runs in many layouts, of which one rank is lost at a random operation of a random step. Started again, they end with
// the losses and the weights of runs that nothing disturbed, bit for bit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/base/hash/random.h"
#include "millrace/collectives/testing/faulty.h"
#include "millrace/train/testing/train_runs.h"

namespace millrace::train {
namespace {

using engine::ParallelOptions;
using engine::PipelineSchedule;
using engine::Recompute;

struct DividedRun {
  int ranks;
  ParallelOptions parallel;
};

/// Every kind of division, schedule and recomputation.
const DividedRun kDividedRuns[] = {
    {2, {}},
    {4, {.shard = 2, .zero = 1, .recompute = Recompute::kSelective}},
    {4, {.tensor = 2, .sequence = true, .zero = 2}},
    {3, {.zero = 3, .reshard = false, .recompute = Recompute::kFull}},
    {2, {.pipeline = 2, .schedule = PipelineSchedule::kZeroBubble}},
    {4, {.pipeline = 2, .schedule = PipelineSchedule::kInterleaved, .virtual_stages = 2, .zero = 1}},
    {4, {.tensor = 2, .pipeline = 2, .schedule = PipelineSchedule::kSimple}}};

class LostRanks : public TrainTest {
 protected:
  static constexpr std::uint64_t kSteps = 8, kEvery = 2;

  Options OptionsOf(const DividedRun& layout, const std::string& run) const {
    Options options = Tiny(run);
    // GPT-2 has dropout, and its tied table is on the first and the last stage.
    options.model_config = {{"model_type", "gpt2"}, {"n_embd", 32},      {"n_layer", 4},      {"n_head", 4},
                            {"n_positions", 32},    {"embd_pdrop", 0.1}, {"attn_pdrop", 0.1}, {"resid_pdrop", 0.1}};
    options.global_batch = 12;
    options.micro_batch = 1;
    options.steps = kSteps;
    options.data.threads = 1;
    options.checkpoint.every_steps = kEvery;
    options.checkpoint.url = CheckpointUrl(run);
    options.parallel = layout.parallel;
    return options;
  }
};

TEST_F(LostRanks, RunsThatLoseOneEndWithTheSameBits) {
  Random random(11);
  int number = 0;
  for (const DividedRun& layout : kDividedRuns) {
    const auto victim = static_cast<int>(random.Below(static_cast<std::uint64_t>(layout.ranks)));
    // A checkpoint begins when the one before is committed. So there is one from which the run can go on.
    const std::uint64_t step = 2 * kEvery + random.Below(kSteps - 2 * kEvery - 1);
    // A rank starts at least eight operations in a step, so it is lost before the end of the next one.
    const std::uint64_t operation = random.Below(8);
    ++number;
    SCOPED_TRACE(fmt::format("layout {}: rank {} of {} is lost after step {} at operation {}", number, victim,
                             layout.ranks, step, operation));
    const Options undisturbed = OptionsOf(layout, fmt::format("whole {}", number));
    const Ran whole = RunRanks(undisturbed, layout.ranks);
    ASSERT_TRUE(whole.outcome) << whole.outcome.error().ToString();

    const Options options = OptionsOf(layout, fmt::format("lost {}", number));
    std::stop_source reached;
    on_step_ = [&](const StepReport& report) {
      if (report.step == step) reached.request_stop();
    };
    wrap_ = [&](int rank, std::unique_ptr<engine::Collective> world) {
      if (rank != victim) return world;
      return collectives::MakeFaulty(std::move(world), {.counted_from = reached.get_token(), .lost_at = operation});
    };
    loses_ranks_ = true;
    const Ran lost = RunRanks(options, layout.ranks);
    ASSERT_FALSE(lost.outcome);
    EXPECT_LT(lost.losses.size(), kSteps);
    on_step_ = nullptr;
    wrap_ = nullptr;
    loses_ranks_ = false;

    const Ran rest = RunRanks(options, layout.ranks);
    ASSERT_TRUE(rest.outcome) << rest.outcome.error().ToString();
    EXPECT_LE(rest.plan.resumed_from, lost.losses.rbegin()->first);
    EXPECT_GE(rest.plan.resumed_from, kEvery);
    std::map<std::uint64_t, double> seen = lost.losses;
    for (const auto& [at, loss] : rest.losses) seen[at] = loss;
    for (const auto& [at, loss] : lost.losses) EXPECT_EQ(loss, whole.losses.at(at)) << at;
    EXPECT_EQ(seen, whole.losses);
    EXPECT_EQ(Tensors(options.checkpoint.url, kSteps), Tensors(undisturbed.checkpoint.url, kSteps));
  }
}

}  // namespace
}  // namespace millrace::train
