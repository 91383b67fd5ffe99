#include "millrace/object/s3/requests/pace.h"

#include <gtest/gtest.h>

#include <algorithm>

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

/// Lets `count` uploads of 1 MB end while there are always `waiting` of them; `rate_of` tells the bytes a second that
/// come through when that number of uploads is sent at once.
template <class Rate>
void Upload(UploadPace& pace, FakeClock& clock, int count, int waiting, Rate rate_of) {
  for (int i = 0; i < waiting; ++i) pace.Began();
  for (int i = 0; i < count; ++i) {
    const double seconds = 1e6 / rate_of(std::min(pace.limit(), waiting));
    clock.Advance(std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds)));
    pace.Ended(1'000'000, clock.Now());
    pace.Began();
  }
}

TEST(UploadPace, GrowsToCoverALongWay) {
  FakeClock clock;
  UploadPace pace(128);
  Upload(pace, clock, 3000, 200, [](int at_once) { return at_once * 20e6; });  // 50 ms each, whatever else goes on
  EXPECT_GE(pace.limit(), 80);
}

TEST(UploadPace, StopsWhereTheServerIsBusy) {
  FakeClock clock;
  UploadPace pace(128);
  Upload(pace, clock, 500, 200, [](int at_once) { return std::min(at_once, 24) * 20e6; });
  EXPECT_LE(pace.limit(), 36);
  EXPECT_GE(pace.limit(), 16);
}

TEST(UploadPace, ASlowerServerIsAskedForLess) {
  FakeClock clock;
  UploadPace pace(128);
  Upload(pace, clock, 10'000, 200, [](int at_once) { return 1e9 / (1 + at_once * 0.02); });
  EXPECT_LE(pace.limit(), 10);
}

TEST(UploadPace, UploadsThatFillNoLimitSayNothingAboutIt) {
  FakeClock clock;
  UploadPace pace(128);
  Upload(pace, clock, 5000, 8, [](int at_once) { return at_once * 20e6; });
  EXPECT_EQ(pace.limit(), 16);
}

TEST(UploadPace, NeverMoreThanAllowed) {
  FakeClock clock;
  UploadPace pace(6);
  EXPECT_EQ(pace.limit(), 6);
  Upload(pace, clock, 5000, 64, [](int at_once) { return at_once * 20e6; });
  EXPECT_LE(pace.limit(), 6);
  EXPECT_GE(pace.limit(), 4);
}

}  // namespace
}  // namespace millrace::object::s3
