#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "millrace/jobs/sweep/early_stopping.h"
#include "millrace/jobs/sweep/search_space.h"
#include "millrace/jobs/sweep/sweep_state.h"

namespace millrace::jobs {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

std::vector<VariedKey> Keys(const std::vector<std::string>& texts) {
  std::vector<VariedKey> keys;
  for (const std::string& text : texts) keys.push_back(ParseVariedKey(text).value());
  return keys;
}

TEST(SearchSpace, AGridHasAllCombinations) {
  const auto runs = GridRuns(Keys({"train.optimizer.lr=1e-4, 3e-4", "train.seed=1,2,3"}));
  ASSERT_TRUE(runs);
  EXPECT_EQ(runs->size(), 6U);
  EXPECT_THAT((*runs)[0], ElementsAre(Pair("train.optimizer.lr", "1e-4"), Pair("train.seed", "1")));
  EXPECT_THAT((*runs)[4], ElementsAre(Pair("train.optimizer.lr", "3e-4"), Pair("train.seed", "2")));
  EXPECT_EQ(GridRuns({})->size(), 1U);
}

TEST(SearchSpace, CommasInListsAndTextsBelongToValues) {
  EXPECT_THAT(ParseVariedKey("a.betas=[0.9, 0.95],[0.9, 0.999]")->values, ElementsAre("[0.9, 0.95]", "[0.9, 0.999]"));
  EXPECT_THAT(ParseVariedKey("a.p={zero: 1, tensor: 2},{zero: 0}")->values,
              ElementsAre("{zero: 1, tensor: 2}", "{zero: 0}"));
  EXPECT_THAT(ParseVariedKey(R"(a.t="x,y",'z,')")->values, ElementsAre(R"("x,y")", "'z,'"));
}

TEST(SearchSpace, RandomRunsDependOnSeedAndNumberAlone) {
  const auto keys = Keys({"lr=log:1e-5..1e-3", "decay=uniform:0..0.5", "layers=int:2..4", "name=a,b"});
  const auto few = *RandomRuns(keys, 5, 7), many = *RandomRuns(keys, 500, 7);
  EXPECT_TRUE(std::equal(few.begin(), few.end(), many.begin()));
  EXPECT_NE(few, *RandomRuns(keys, 5, 8));
  double logs = 0;
  for (const RunValues& run : many) {
    const double lr = std::stod(run[0].second), decay = std::stod(run[1].second);
    const int layers = std::stoi(run[2].second);
    EXPECT_TRUE(lr >= 1e-5 && lr <= 1e-3 && decay >= 0 && decay <= 0.5 && layers >= 2 && layers <= 4) << lr << decay;
    logs += std::log10(lr) / 500;
  }
  EXPECT_NEAR(logs, -4, 0.1);
}

TEST(SearchSpace, MistakesAreNamed) {
  const auto refusal = [](std::string_view text) { return ParseVariedKey(text).error().ToString(); };
  EXPECT_THAT(refusal("lr"), HasSubstr("should be KEY=VALUES"));
  EXPECT_THAT(refusal("lr=1,,2"), HasSubstr("has an empty value"));
  EXPECT_THAT(refusal("lr=log:0..1"), HasSubstr("begin above 0"));
  EXPECT_THAT(refusal("lr=log:1..x"), HasSubstr("two numbers"));
  EXPECT_THAT(refusal("lr=uniform:2..1"), HasSubstr("the smaller one first"));
  EXPECT_THAT(refusal("n=int:1..2.5"), HasSubstr("whole numbers"));
  EXPECT_THAT(GridRuns(Keys({"lr=log:1..2"})).error().ToString(), HasSubstr("--random N"));
  EXPECT_THAT(GridRuns(Keys({"a=1,2", "a=3"})).error().ToString(), HasSubstr("a is varied twice"));
  std::vector<std::string> large(14, "=1,2");
  for (std::size_t i = 0; i < large.size(); ++i) large[i] = "k" + std::to_string(i) + large[i];
  EXPECT_THAT(GridRuns(Keys(large)).error().ToString(), HasSubstr("more than 10,000"));
}

using Reports = std::vector<MetricReport>;

TEST(EarlyStopping, TheMedianStopsWhoIsWorse) {
  const StoppingOptions options{.rule = StoppingOptions::Rule::kMedian, .min_steps = 20};
  std::vector<Reports> runs = {{{10, 4}, {20, 2}}, {{10, 5}, {20, 3}}, {{10, 6}, {20, 4}}, {{10, 9}, {20, 4.5}}};
  int rungs = 0;
  // Means of the others: 3, 4, 5.
  EXPECT_THAT(WhyStop(options, runs, 3, rungs).value_or(""),
              HasSubstr("its best is 4.5, and the median of 3 others is 4"));
  runs[3].back().value = 4;
  EXPECT_FALSE(WhyStop(options, runs, 3, rungs));
  runs[3].pop_back();
  EXPECT_FALSE(WhyStop(options, runs, 3, rungs)) << "before min_steps";
  runs[3] = {{20, 9}};
  runs[0].pop_back();
  EXPECT_FALSE(WhyStop(options, runs, 3, rungs)) << "only two others have come to step 20";
  const StoppingOptions higher{.rule = StoppingOptions::Rule::kMedian, .lower_is_better = false};
  runs = {{{10, 4}}, {{10, 5}}, {{10, 6}}, {{10, 3}}};
  EXPECT_TRUE(WhyStop(higher, runs, 3, rungs));
  EXPECT_FALSE(WhyStop(higher, runs, 2, rungs));
}

TEST(EarlyStopping, AshaLetsOneOfEtaGoOn) {
  const StoppingOptions options{.rule = StoppingOptions::Rule::kAsha, .min_steps = 10, .factor = 2};
  std::vector<Reports> runs = {{{10, 3}}, {}, {}, {}};
  std::vector<int> rungs(4);
  EXPECT_FALSE(WhyStop(options, runs, 0, rungs[0])) << "the first at a rung goes on";
  EXPECT_EQ(rungs[0], 1);
  runs[1] = {{12, 2}};  // the first report behind the rung counts
  EXPECT_FALSE(WhyStop(options, runs, 1, rungs[1]));
  runs[2] = {{10, 2.5}};
  EXPECT_THAT(WhyStop(options, runs, 2, rungs[2]).value_or(""),
              HasSubstr("1 of 3 runs are better; the best 1 goes on"));
  runs[0] = {{10, 3}, {19, 2.9}};
  EXPECT_FALSE(WhyStop(options, runs, 0, rungs[0])) << "a rung is judged once";
  runs[0] = {{10, 3}, {20, 1}};
  runs[1] = {{12, 2}, {20, 1.5}};
  EXPECT_FALSE(WhyStop(options, runs, 0, rungs[0]));
  EXPECT_TRUE(WhyStop(options, runs, 1, rungs[1])) << "rung 20";
  EXPECT_EQ(rungs[1], 2);
  runs[3] = {{10, 1}, {20, 0.5}, {40, 0.1}, {80, 0.1}};
  EXPECT_FALSE(WhyStop(options, runs, 3, rungs[3]));
  EXPECT_EQ(rungs[3], 4) << "rungs 10, 20, 40 and 80";
}

TEST(SweepState, IsKeptAndKnowsItsBest) {
  const TempDir root = *TempDir::Create();
  EXPECT_EQ(ReadSweep(root.path(), "small").error().code(), Code::kNotFound);
  EXPECT_EQ(ReadSweep(root.path(), "../small").error().code(), Code::kNotFound);
  SweepState state{.name = "small", .job = "name: small\n", .source = "s3://a/sha256", .metric = "loss"};
  state.runs = {{.name = "small-1", .values = {{"lr", "1"}}, .state = "done", .step = 5, .value = 2.5},
                {.name = "small-2", .values = {{"lr", "2"}}, .state = "stopped", .reason = "worse", .value = 1.5},
                {.name = "small-3", .values = {{"lr", "3"}}, .state = "done", .value = 2, .rungs_passed = 2},
                {.name = "small-4", .values = {{"lr", "4"}}}};
  auto lock = LockSweep(root.path(), "small");
  ASSERT_TRUE(lock);
  EXPECT_EQ(LockSweep(root.path(), "small").error().code(), Code::kBusy);
  ASSERT_TRUE(WriteSweep(root.path(), state));
  EXPECT_EQ(*ReadSweep(root.path(), "small"), state);
  EXPECT_EQ(state.Best(), 2U) << "of those that came to their end";
  state.lower_is_better = false;
  EXPECT_EQ(state.Best(), 0U);
  state.runs[0].value.reset();
  state.runs[2].value.reset();
  EXPECT_EQ(state.Best(), 1U);
  EXPECT_FALSE(IsSweepStopped(root.path(), "small"));
  ASSERT_TRUE(SetSweepStop(root.path(), "small", true));
  EXPECT_TRUE(IsSweepStopped(root.path(), "small"));
  ASSERT_TRUE(SetSweepStop(root.path(), "small", false));
  EXPECT_FALSE(IsSweepStopped(root.path(), "small"));
}

}  // namespace
}  // namespace millrace::jobs
