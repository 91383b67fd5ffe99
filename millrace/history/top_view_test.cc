#include "millrace/history/top_view.h"

#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace millrace::history {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

JobSummary Job(std::size_t ranks) {
  JobSummary job{.name = "demo", .state = "running", .message = "started", .restarts = 1};
  for (std::size_t i = 0; i < ranks; ++i) {
    job.ranks.push_back({.node = "node-1", .state = "running", .pid = 100, .step = 40});
  }
  return job;
}

RunHistory History(std::size_t ranks) {
  RunHistory history;
  history.Start({.name = "demo", .checkpoint_url = "s3://runs/demo", .ranks = 2, .steps = 100, .flops_rate = 1e9}, 0,
                0);
  for (std::uint64_t step = 1; step <= 40; ++step) {
    ChartPoint point{.first_step = step, .last_step = step, .loss = 5 - 0.1 * static_cast<double>(step), .losses = 1};
    point.tokens = 4096;
    point.flops = 2e8;
    point.times = {.step = 0.5, .data_wait = 0.1, .comm_wait = 0.05, .data_wait_on = {{"network", 0.1}, {"pack", 0}}};
    history.AddStep(point, 20);
  }
  history.AddCheckpoint({.step = 30, .tier = "store", .bytes = 5'000'000, .seconds = 1.5, .time = 100});
  std::vector<RankFigures> figures(ranks, {.times = {.step = 0.5, .comm_wait = 0.1}, .memory_bytes = 200'000'000});
  if (ranks > 1) figures[1].slowness = 2, figures[1].straggles = true;
  history.SetRanks(figures);
  return history;
}

std::string Drawn(std::size_t ranks, ViewSize size) {
  return fmt::format("{}", fmt::join(DrawTop(Job(ranks), History(ranks), 160, size), "\n"));
}

TEST(TopViewTest, ShowsTheJob) {
  const std::string text = Drawn(2, {.width = 130});
  EXPECT_THAT(text, HasSubstr("demo  running  step 40 of 100 (40 %)  30.0 s left  1 restart"));
  EXPECT_THAT(text, HasSubstr("8,192 tok/s  step 500.0 ms  MFU 40 %"));
  EXPECT_THAT(text, HasSubstr("loss 1.0000 █"));
  EXPECT_THAT(text, HasSubstr("compute 70 %"));
  EXPECT_THAT(text, HasSubstr("data 20 % (network)"));
  EXPECT_THAT(text, HasSubstr("checkpoint of step 30 (store), 5.0 MB a rank in 1.5 s, 1m00s ago"));
  EXPECT_THAT(text, HasSubstr("slower than its peers: rank 1 (x2.0)"));
  EXPECT_THAT(text, AllOf(HasSubstr("NODE"), HasSubstr("node-1"), HasSubstr("slow x2.0"), HasSubstr("200.0 MB")));
  EXPECT_THAT(text, Not(HasSubstr("\x1b")));
}

TEST(TopViewTest, ShowsTheMetricsOfTheJobFile) {
  JobSummary job = Job(1);
  job.metrics.Add("rate\x1b", 40, 2.5e-7);
  job.metrics.Add("train_loss", 40, 2.25);
  const std::string text = fmt::format("{}", fmt::join(DrawTop(job, History(1), 160, {.width = 80}), "\n"));
  EXPECT_THAT(text, HasSubstr("\nrate? 2.5e-07  train_loss 2.25\n"));
  EXPECT_EQ(TopToJson(job, History(1), 160)["metrics"]["train_loss"], 2.25);
  EXPECT_FALSE(TopToJson(Job(1), History(1), 160).contains("metrics"));
}

TEST(TopViewTest, ShowsTheLoadOfGpus) {
  RunHistory history = History(2);
  std::vector<RankFigures> ranks = history.ranks();
  ranks[0].gpu = {.utilization = 0.97, .celsius = 61, .watts = 412.3};
  history.SetRanks(ranks);
  const std::string text = fmt::format("{}", fmt::join(DrawTop(Job(2), history, 160, {.width = 150}), "\n"));
  EXPECT_THAT(text, AllOf(HasSubstr("  GPU  TEMP  POWER"), HasSubstr(" 97 % 61 °C  412 W ")));
  for (const int width : {60, 94, 100, 107, 113, 130, 139}) {
    for (const std::string& line : DrawTop(Job(2), history, 160, {.width = width})) {
      EXPECT_LE(std::ranges::count_if(line, [](char c) { return (c & 0xC0) != 0x80; }), width) << line;
    }
  }
  EXPECT_THAT(Drawn(2, {.width = 150}), Not(HasSubstr("TEMP"))) << "no rank has a GPU";
}

TEST(TopViewTest, LinesFitEveryTerminal) {
  for (const int width : {1, 10, 24, 40, 60, 80, 100, 200}) {
    for (const int height : {1, 2, 5, 10, 24, 60}) {
      for (const bool keys : {false, true}) {
        const auto lines = DrawTop(Job(40), History(40), 160, {.width = width, .height = height, .keys = keys});
        EXPECT_LE(lines.size(), static_cast<std::size_t>(height));
        for (const std::string& line : lines) {
          const auto columns = std::ranges::count_if(line, [](char c) { return (c & 0xC0) != 0x80; });
          EXPECT_LE(columns, width) << line;
        }
      }
    }
  }
}

TEST(TopViewTest, ScrollsThroughManyRanks) {
  const ViewSize size{.width = 100, .height = 20, .first = 30, .keys = true};
  const std::string text = Drawn(64, size);
  EXPECT_THAT(text, HasSubstr("\n  30 "));
  EXPECT_THAT(text, Not(HasSubstr("\n  29 ")));
  EXPECT_THAT(text, HasSubstr(fmt::format("ranks 30 to {} of 64", 29 + RanksShown(Job(64), History(64), size))));
  EXPECT_THAT(Drawn(64, {.width = 100, .height = 20, .first = 1000, .keys = true}), HasSubstr("\n  63 "));
}

TEST(TopViewTest, ColoursOnlyWhereAsked) {
  EXPECT_THAT(Drawn(2, {.width = 130, .colours = true}), HasSubstr("\x1b[32mrunning\x1b[0m"));
}

TEST(TopViewTest, NothingInAFileMovesTheCursor) {
  JobSummary job = Job(1);
  job.name =
      "a\x1b[2Jb\xc2\x9b"
      "c";
  job.message = "bad \xff bytes";
  job.ranks[0].node = "\r\n";
  const std::string text = fmt::format("{}", fmt::join(DrawTop(job, History(1), 160, {.width = 130}), "|"));
  EXPECT_THAT(text, HasSubstr("a?[2Jb?c"));
  EXPECT_THAT(text, HasSubstr("bad ? bytes"));
  EXPECT_THAT(text, Not(testing::ContainsRegex("[\x1b\r\n]")));
}

TEST(TopViewTest, AJobWithoutHistoryIsShown) {
  const auto lines = DrawTop(Job(2), RunHistory(), 0, {.width = 80});
  EXPECT_THAT(fmt::format("{}", fmt::join(lines, "\n")), HasSubstr("no step was reported yet"));
  EXPECT_EQ(TopToJson(Job(2), RunHistory(), 0)["ranks"].size(), 2u);
}

TEST(TopViewTest, JsonHasTheSameNumbers) {
  const Json json = TopToJson(Job(2), History(2), 160);
  EXPECT_EQ(json["step"], 40);
  EXPECT_EQ(json["tokens_per_s"], 8192);
  EXPECT_EQ(json["checkpoint"]["age_s"], 60);
  EXPECT_DOUBLE_EQ(json["mfu"].get<double>(), 0.4);
  EXPECT_EQ(json["ranks"][1]["straggles"], true);
  EXPECT_EQ(json["ranks"][1]["node"], "node-1");
}

TEST(TopViewTest, SparklinesFollowTheValues) {
  EXPECT_EQ(Sparkline({1, 2, 3}, 10), "▁▅█");
  EXPECT_EQ(Sparkline({1, 1, 3, 3}, 2), "▁█");
  EXPECT_EQ(Sparkline({}, 5), "");
  EXPECT_EQ(Sparkline({7}, 5), "▁");
}

}  // namespace
}  // namespace millrace::history
