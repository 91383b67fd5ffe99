#include "millrace/jobs/running_time.h"

#include <gtest/gtest.h>

namespace millrace::jobs {
namespace {

using std::chrono::seconds;

TEST(RunningTimeTest, StandsStillWhileItsOwnerDoesNotRun) {
  RunningTime time(seconds(4));
  TimePoint now = TimePoint(seconds(100));
  const TimePoint start = time.Advance(now);
  EXPECT_EQ(time.Advance(now += seconds(3)) - start, seconds(3));
  EXPECT_EQ(time.Advance(now += seconds(60)) - start, seconds(7)) << "of a freeze, one tick counts";
  EXPECT_EQ(time.left_out(), seconds(56));
  EXPECT_EQ(time.Advance(now += seconds(4)) - start, seconds(11));
}

TEST(RunningTimeTest, ACallThatTookItsTimeCounts) {
  RunningTime time(seconds(4));
  TimePoint now = TimePoint(seconds(100));
  const TimePoint start = time.Advance(now);
  EXPECT_EQ(time.AdvanceWhole(now += seconds(60)) - start, seconds(60));
  EXPECT_EQ(time.left_out(), seconds(0));
}

}  // namespace
}  // namespace millrace::jobs
