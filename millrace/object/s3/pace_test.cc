#include "millrace/object/s3/pace.h"

#include <gtest/gtest.h>

namespace millrace::object::s3 {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(AdaptiveLimit, StaysOpenUntilTheServerComplains) {
  AdaptiveLimit pace(4, 64);
  for (int i = 0; i < 1000; ++i) pace.Succeeded();
  EXPECT_EQ(pace.limit(), 64);
  EXPECT_TRUE(pace.open());
}

TEST(AdaptiveLimit, ABurstOfRefusalsCountsOnce) {
  FakeClock clock;
  AdaptiveLimit pace(4, 100);
  for (int i = 0; i < 50; ++i) pace.Throttled(clock.Now());
  EXPECT_EQ(pace.limit(), 70);
  clock.Advance(milliseconds(999));
  pace.Throttled(clock.Now());
  EXPECT_EQ(pace.limit(), 70);
  clock.Advance(milliseconds(1));
  pace.Throttled(clock.Now());
  EXPECT_EQ(pace.limit(), 49);
}

TEST(AdaptiveLimit, NeverBelowTheLeast) {
  FakeClock clock;
  AdaptiveLimit pace(4, 64);
  for (int i = 0; i < 100; ++i) {
    pace.Throttled(clock.Now());
    clock.Advance(seconds(1));
  }
  EXPECT_EQ(pace.limit(), 4);
}

TEST(AdaptiveLimit, ARoundOfSuccessesAllowsOneMore) {
  FakeClock clock;
  AdaptiveLimit pace(1, 20);
  pace.Throttled(clock.Now());
  EXPECT_EQ(pace.limit(), 14);
  for (int i = 0; i < 15; ++i) pace.Succeeded();
  EXPECT_EQ(pace.limit(), 15);
  for (int i = 0; i < 500; ++i) pace.Succeeded();
  EXPECT_TRUE(pace.open());
}

/// A server that takes 30 at once and refuses a round in which there are more: the client settles around that.
TEST(AdaptiveLimit, SettlesAroundWhatTheServerTakes) {
  FakeClock clock;
  AdaptiveLimit pace(4, 128);
  double sum = 0;
  for (int round = 0; round < 400; ++round) {
    int sent = pace.limit();
    for (int i = 0; i < sent; ++i) sent > 30 && i >= 30 ? pace.Throttled(clock.Now()) : pace.Succeeded();
    clock.Advance(milliseconds(100));
    if (round >= 200) sum += sent;
  }
  EXPECT_GT(sum / 200, 20);
  EXPECT_LT(sum / 200, 36);
}

}  // namespace
}  // namespace millrace::object::s3
