#include "millrace/jobs/health/spot_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>

#include "millrace/http/testing/scripted_server.h"

namespace millrace::jobs {
namespace {

using http::testing::Answer;
using http::testing::ScriptedServer;
using std::chrono::milliseconds;

constexpr std::string_view kNotice = R"({"action": "terminate", "time": "2026-01-31T12:00:00Z"})";

std::optional<Finding> AwaitNotice(const SpotWatch& watch) {
  for (int i = 0; i < 2000 && !watch.TerminationNotice(); ++i) SystemClock().SleepFor(milliseconds(5));
  return watch.TerminationNotice();
}

TEST(SpotWatchTest, TellsANoticeThatNeedsASessionToken) {
  ScriptedServer server([](const ScriptedServer::Seen& seen) -> ScriptedServer::Reply {
    if (seen.method == "PUT" && seen.target == "/latest/api/token") {
      EXPECT_EQ(seen.headers.Get("X-aws-ec2-metadata-token-ttl-seconds"), "21600");
      return {Answer(200, "a-token")};
    }
    EXPECT_EQ(seen.target, "/latest/meta-data/spot/instance-action");
    if (seen.headers.Get("X-aws-ec2-metadata-token") != "a-token") return {Answer(401, "")};
    return {seen.number < 4 ? Answer(404, "") : Answer(200, kNotice)};
  });
  const SpotWatch watch(server.url(), milliseconds(5));
  const auto notice = AwaitNotice(watch);
  ASSERT_TRUE(notice);
  EXPECT_EQ(notice->level, Finding::Level::kFail);
  EXPECT_EQ(notice->what, "EC2 will terminate this machine at 2026-01-31T12:00:00Z");
}

TEST(SpotWatchTest, TheFirstVersionOfTheServiceHasNoTokens) {
  ScriptedServer server([](const ScriptedServer::Seen&) { return ScriptedServer::Reply{Answer(200, kNotice)}; });
  EXPECT_TRUE(AwaitNotice(SpotWatch(server.url(), milliseconds(5))));
}

TEST(SpotWatchTest, WithoutAnAnswerOrWithAnotherThereIsNoNotice) {
  std::atomic<int> asked = 0;
  ScriptedServer server([&](const ScriptedServer::Seen& seen) -> ScriptedServer::Reply {
    ++asked;
    return {seen.number % 2 == 0 ? Answer(200, "<html>") : Answer(500, "")};
  });
  const SpotWatch watch(server.url(), milliseconds(1)), nobody("http://127.0.0.1:1", milliseconds(1));
  while (asked < 6) SystemClock().SleepFor(milliseconds(1));
  EXPECT_FALSE(watch.TerminationNotice());
  EXPECT_FALSE(nobody.TerminationNotice());
}

}  // namespace
}  // namespace millrace::jobs
