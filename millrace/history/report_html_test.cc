#include "millrace/history/report_html.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace millrace::history {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

RunHistory History() {
  RunHistory history;
  history.Start({.name = "demo", .ranks = 2, .steps = 100, .flops_rate = 1e9}, 1'700'000'000, 0);
  for (std::uint64_t step = 1; step <= 40; ++step) {
    ChartPoint point{.first_step = step, .last_step = step, .loss = 5 - 0.1 * static_cast<double>(step), .losses = 1};
    point.tokens = 4096;
    point.flops = 2e8;
    point.times = {.step = 0.5, .data_wait = 0.1, .comm_wait = 0.05, .data_wait_on = {{"network", 0.1}}};
    history.AddStep(point, 1'700'000'020);
  }
  history.AddCheckpoint({.step = 30, .tier = "store", .bytes = 5'000'000, .seconds = 1.5, .time = 1'700'000'015});
  history.AddEvaluation({.step = 40, .metrics = {{"loss", 1.25}, {"perplexity", 3.49}}});
  history.SetRanks({{.times = {.step = 0.5}}, {.times = {.step = 0.5}, .slowness = 2, .straggles = true}});
  return history;
}

/// Checks that elements are closed in the order in which they were opened. Returns the first that is not.
std::string FirstUnbalanced(const std::string& html) {
  std::vector<std::string> open;
  for (std::size_t at = html.find('<'); at != std::string::npos; at = html.find('<', at + 1)) {
    const std::size_t end = html.find('>', at);
    if (end == std::string::npos) return html.substr(at, 30);
    const std::string tag = html.substr(at + 1, end - at - 1);
    if (tag.starts_with('!') || tag.starts_with("meta") || tag.ends_with('/')) continue;
    const std::string name = tag.substr(0, tag.find_first_of(" \n"));
    if (!name.starts_with('/')) {
      open.push_back(name);
    } else if (open.empty() || "/" + open.back() != name) {
      return tag;
    } else {
      open.pop_back();
    }
  }
  return open.empty() ? "" : open.back();
}

TEST(ReportHtmlTest, ShowsTheRun) {
  const JobSummary job{.name = "demo", .state = "done", .message = "all 40 steps", .restarts = 1};
  const std::string html = ReportHtml(job, History(), "2026-01-01T00:00:00Z");
  EXPECT_THAT(html,
              AllOf(HasSubstr("<h2>Loss</h2>"), HasSubstr("<h2>Learning rate</h2>"), HasSubstr("40 of 100"),
                    HasSubstr("8,192"), HasSubstr("40 %"), HasSubstr("data 20.0 %"), HasSubstr("network 20.0 %")));
  EXPECT_THAT(html, AllOf(HasSubstr("5.0 MB"), HasSubstr("2023-11-14T22:13:35Z"), HasSubstr("perplexity 3.49"),
                          HasSubstr("from the beginning"), HasSubstr("1 <span class=\"bad\">slow</span>")));
  EXPECT_EQ(FirstUnbalanced(html), "");
}

TEST(ReportHtmlTest, ShowsTheMetricsOfTheJobFile) {
  JobSummary job{.name = "demo"};
  for (std::uint64_t step = 1; step <= 3; ++step) job.metrics.Add("<loss>", step, 0.5);
  job.metrics.Add("runtime", 3, 12.5);
  const std::string html = ReportHtml(job, History(), "");
  EXPECT_THAT(html, HasSubstr("<h2>&lt;loss&gt;</h2><svg"));
  EXPECT_THAT(html, Not(HasSubstr("<h2>runtime</h2>"))) << "one value is no chart";
  EXPECT_THAT(html, HasSubstr("<tr><td>runtime</td><td>12.5</td><td>3</td></tr>"));
  EXPECT_THAT(html, Not(HasSubstr("<loss>")));
  EXPECT_EQ(FirstUnbalanced(html), "");
}

TEST(ReportHtmlTest, LoadsNothing) {
  const std::string html = ReportHtml({.name = "demo"}, History(), "");
  EXPECT_THAT(html, Not(testing::ContainsRegex("<script|<link|<img|src=|href=|url\\(|@import|https?:")));
  EXPECT_THAT(html, HasSubstr("default-src 'none'"));
}

TEST(ReportHtmlTest, EscapesEveryText) {
  constexpr const char* kEvil = "<script>alert('x')</script>\"&\x01";
  RunHistory history;
  history.Start({.name = kEvil, .steps = 1}, 1, 0);
  history.AddCheckpoint({.step = 1, .tier = kEvil, .error = kEvil});
  history.AddEvaluation({.step = 1, .metrics = {{kEvil, 1}}});
  ChartPoint point{.first_step = 1, .last_step = 1};
  point.times = {.step = 1, .data_wait = 1, .data_wait_on = {{kEvil, 1}}};
  history.AddStep(point, 1);
  history.SetRanks({{.times = {.step = 1}}});
  const JobSummary job{.name = kEvil,
                       .state = kEvil,
                       .message = kEvil,
                       .ranks = {{.node = kEvil}},
                       .events = {{.time = kEvil, .what = kEvil, .sentence = kEvil}}};
  const std::string html = ReportHtml(job, history, kEvil);
  EXPECT_THAT(html, AllOf(Not(HasSubstr("<script")), Not(HasSubstr("'x'")), Not(HasSubstr("\x01"))));
  std::size_t escaped = 0;
  for (std::size_t at = html.find("&lt;script"); at != std::string::npos; at = html.find("&lt;script", at + 1))
    ++escaped;
  EXPECT_EQ(escaped, 13u);
  EXPECT_EQ(FirstUnbalanced(html), "");
}

TEST(ReportHtmlTest, ARunWithoutStepsHasAPage) {
  const std::string html = ReportHtml({.name = "demo", .state = "failed"}, RunHistory(), "");
  EXPECT_THAT(html, HasSubstr("0 of 0"));
  EXPECT_EQ(FirstUnbalanced(html), "");
}

}  // namespace
}  // namespace millrace::history
