#include "millrace/plan/search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <optional>

#include "millrace/plan/testing_setups.h"

namespace millrace::plan {
namespace {

using engine::ParallelOptions, engine::PipelineSchedule, engine::Recompute;
using ::testing::HasSubstr;

TrainingSetup SmallSetup(int ranks) {
  return {.model = LlamaShape(512, 1408, 8, 6, 32000),
          .ranks = ranks,
          .ranks_per_machine = ranks,
          .global_batch = 16,
          .micro_batch = 1,
          .sequence_length = 512};
}

/// Returns the plans of all layouts that could be given by hand, with none of the search's own pruning.
std::vector<Plan> EveryPlan(const TrainingSetup& setup, const Machine& machine) {
  std::vector<Plan> plans;
  const auto add = [&](const ParallelOptions& options) {
    if (auto plan = MakePlan(setup, options, machine); plan && plan->fits()) plans.push_back(*std::move(plan));
  };
  for (int tensor = 1; tensor <= setup.ranks; ++tensor) {
    for (int pipeline = 1; pipeline <= setup.ranks; ++pipeline) {
      for (const bool sequence : {false, true}) {
        for (const Recompute recompute : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
          for (int zero = 0; zero <= 3; ++zero) {
            ParallelOptions options{
                .tensor = tensor, .sequence = sequence, .pipeline = pipeline, .zero = zero, .recompute = recompute};
            for (const auto schedule :
                 {PipelineSchedule::kSimple, PipelineSchedule::k1F1B, PipelineSchedule::kZeroBubble}) {
              options.schedule = schedule;
              add(options);
            }
            options.schedule = PipelineSchedule::kInterleaved;
            for (options.virtual_stages = 2; options.virtual_stages <= 6; ++options.virtual_stages) add(options);
          }
        }
      }
    }
  }
  return plans;
}

TEST(Search, NoLayoutGivenByHandIsFaster) {
  for (const char* name : {"cpu", "p4d.24xlarge"}) {
    const Machine machine = Machine::Find(name).value();
    for (const int ranks : {1, 4, 6, 8}) {
      const TrainingSetup setup = SmallSetup(ranks);
      const auto chosen = ChooseLayout(setup, machine);
      ASSERT_TRUE(chosen) << chosen.error().ToString();
      const double best = MakePlan(setup, chosen->options, machine)->time.total();
      for (const Plan& plan : EveryPlan(setup, machine)) {
        EXPECT_GE(plan.time.total(), best * (1 - 1e-12)) << PlanText(plan, setup, machine);
      }
    }
  }
}

TEST(Search, LessMemoryIsFoundWhenMemoryCounts) {
  const Machine machine = Machine::Find("p4d.24xlarge").value();
  const TrainingSetup setup = SmallSetup(8);
  const auto plan = [&](double weight) {
    return MakePlan(setup, ChooseLayout(setup, machine, {.memory_weight = weight})->options, machine).value();
  };
  const Plan fast = plan(0), balanced = plan(0.8), small = plan(1);
  const auto bytes = [](const Plan& each) { return each.memory[each.fullest].total(); };
  EXPECT_LE(fast.time.total(), balanced.time.total());
  EXPECT_LE(bytes(balanced), bytes(fast));
  EXPECT_LE(bytes(small), bytes(balanced));
  for (const Plan& each : EveryPlan(setup, machine)) EXPECT_GE(bytes(each), bytes(small));
}

/// As memory shrinks, the search gives up speed step by step, and never takes what does not fit.
TEST(Search, TheChoiceFitsWhateverTheMemory) {
  Machine machine = Machine::Find("p5.48xlarge").value();
  const TrainingSetup setup{.model = Llama8B(),
                            .ranks = 64,
                            .ranks_per_machine = 8,
                            .global_batch = 256,
                            .sequence_length = 8192,
                            .bf16 = true};
  double before = 0;
  std::optional<Error> error;
  for (machine.memory = 200e9; machine.memory > 1e9 && !error; machine.memory *= 0.8) {
    const auto chosen = ChooseLayout(setup, machine);
    if (!chosen) {
      error = chosen.error();
      break;
    }
    const Plan plan = MakePlan(setup, chosen->options, machine).value();
    EXPECT_TRUE(plan.fits());
    EXPECT_GE(plan.time.total(), before * (1 - 1e-12));
    before = plan.time.total();
  }
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), Code::kResourceExhausted);
  EXPECT_THAT(error->ToString(), HasSubstr("layouts fits: a rank needs at least"));
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr double kMaxSeconds = 30;  // instrumented code says nothing of the program's speed
#else
constexpr double kMaxSeconds = 1;
#endif

TEST(Search, SixteenThousandRanksTakeLessThanASecond) {
  const Machine machine = Machine::Find("p5.48xlarge").value();
  const TrainingSetup setup{.model = Llama405B(),
                            .ranks = 16384,
                            .ranks_per_machine = 8,
                            .global_batch = 2048,
                            .sequence_length = 8192,
                            .bf16 = true};
  const auto begin = std::chrono::steady_clock::now();
  const auto chosen = ChooseLayout(setup, machine);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  ASSERT_TRUE(chosen) << chosen.error().ToString();
  EXPECT_LT(seconds, kMaxSeconds);
  EXPECT_GT(chosen->tried, 1000u);
  const Plan plan = MakePlan(setup, chosen->options, machine).value();
  EXPECT_TRUE(plan.fits());
  EXPECT_EQ(plan.layout.shape.ranks(), 16384);
  std::printf("%zu layouts in %.3f s\n%s", chosen->tried, seconds, PlanText(plan, setup, machine).c_str());
}

TEST(Search, RefusesWhatCannotBeDivided) {
  const Machine machine = Machine::Find("p5.48xlarge").value();
  TrainingSetup setup = SmallSetup(7);  // 7 divides neither heads, nor layers, nor the batch
  const auto chosen = ChooseLayout(setup, machine);
  ASSERT_FALSE(chosen);
  EXPECT_THAT(chosen.error().ToString(), HasSubstr("no layout of 7 ranks divides train.global_batch 16"));
}

}  // namespace
}  // namespace millrace::plan
