#include "millrace/base/clock.h"

#include <gtest/gtest.h>

#include <thread>

#include "millrace/base/hash/random.h"

namespace millrace {
namespace {

using namespace std::chrono_literals;

TEST(FakeClock, SleepersWakeWhenTheirTimeComes) {
  FakeClock clock;
  TimePoint start = clock.Now();
  std::thread sleeper([&] {
    EXPECT_TRUE(clock.SleepFor(10s));
    EXPECT_EQ(clock.Now() - start, 11s);
  });
  clock.AwaitSleepers(1);
  clock.Advance(9s);
  clock.AwaitSleepers(1);
  clock.Advance(2s);
  sleeper.join();
}

TEST(FakeClock, StopWakesASleeper) {
  FakeClock clock;
  std::jthread sleeper([&](std::stop_token stop) { EXPECT_FALSE(clock.SleepFor(1h, stop)); });
  clock.AwaitSleepers(1);
}

TEST(FakeClock, CanAdvanceItself) {
  FakeClock clock;
  clock.AdvanceOnSleep(true);
  WallTime wall = clock.Wall();
  EXPECT_TRUE(clock.SleepFor(24h));
  EXPECT_EQ(clock.Wall() - wall, 24h);
}

TEST(SystemClock, StopEndsASleepAtOnce) {
  std::stop_source stop;
  stop.request_stop();
  EXPECT_FALSE(SystemClock().SleepFor(1h, stop.get_token()));
  EXPECT_TRUE(SystemClock().SleepFor(0s));
}

TEST(Deadline, InfiniteNeverPasses) {
  FakeClock clock;
  EXPECT_FALSE(Deadline().Passed(clock));
  Deadline soon = Deadline::After(clock, 5s);
  EXPECT_FALSE(soon.Passed(clock));
  clock.Advance(5s);
  EXPECT_TRUE(soon.Passed(clock));
}

TEST(Dates, KnownForms) {
  WallTime time{std::chrono::seconds(1369353600)};  // the moment of AWS's signing examples
  EXPECT_EQ(FormatAmzDate(time), "20130524T000000Z");
  EXPECT_EQ(FormatIso8601(time + 120ms), "2013-05-24T00:00:00.120Z");
  EXPECT_EQ(FormatHttpDate(time), "Fri, 24 May 2013 00:00:00 GMT");
}

TEST(Dates, RoundTrip) {
  Random random(1);
  for (int i = 0; i < 1000; ++i) {
    WallTime time{std::chrono::milliseconds(random.Below(4'000'000'000'000))};
    EXPECT_EQ(ParseIso8601(FormatIso8601(time)), time);
    WallTime whole = std::chrono::floor<std::chrono::seconds>(time);
    EXPECT_EQ(ParseHttpDate(FormatHttpDate(whole)), whole);
    EXPECT_EQ(ParseIso8601(FormatAmzDate(whole)), whole);
  }
}

TEST(Dates, NonsenseIsRefused) {
  for (auto text : {"", "yesterday", "2013-13-01T00:00:00Z", "2013-02-30T00:00:00Z", "2013-02-01T25:00:00Z",
                    "2013-05-24T00:00:0", "2013-05-24T00:00:-1Z", "2013-05-24T00:00:-0Z", "2013-05-24", "20130524T0000",
                    "2013-05-24T000000Z", " 2013-05-24T00:00:00Z", "T", "2013-", "2013-05-24T00:00:00+02:00"})
    EXPECT_FALSE(ParseIso8601(text)) << text;
  for (auto text : {"", "Fri, 24 Mai 2013 00:00:00 GMT", "Fri, 34 May 2013 00:00:00 GMT"})
    EXPECT_FALSE(ParseHttpDate(text)) << text;
}

}  // namespace
}  // namespace millrace
