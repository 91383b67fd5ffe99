#include "apps/common/progress_text.h"

#include <gmock/gmock.h>

#include "millrace/base/bytes.h"

namespace millrace::cli {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

constexpr WorkProgress kSome{.bytes_done = 50'000'000,
                             .bytes_known = 200'000'000,
                             .items_done = 5005,
                             .items_known = 5008,
                             .all_known = true,
                             .bytes_per_second = 2'000'000};

TEST(ProgressText, FitsEveryWidth) {
  for (int columns = 1; columns <= 200; ++columns) {
    EXPECT_LE(ProgressText(kSome, columns).size(), static_cast<std::size_t>(columns)) << columns;
  }
  EXPECT_EQ(ProgressText(kSome, 200),
            "[######..................] 50.0 MB of 200.0 MB  2.0 MB/s  ETA 1m16s  5005/5008 items");
  EXPECT_THAT(ProgressText(kSome, 79), StartsWith("[###"));
  EXPECT_THAT(ProgressText(kSome, 79), HasSubstr("5005/5008 items"));
  EXPECT_EQ(ProgressText(kSome, 50), "[#......] 50.0 MB of 200.0 MB  2.0 MB/s  ETA 1m16s") << "without items";
  EXPECT_EQ(ProgressText(kSome, 45), "50.0 MB of 200.0 MB  2.0 MB/s  ETA 1m16s") << "without a bar";
  EXPECT_EQ(ProgressText(kSome, 20), "50.0 MB of 200.0 MB");
}

TEST(ProgressText, LeavesOutWhatDoesNotCount) {
  WorkProgress verify = kSome;
  verify.items_done = verify.items_known = 0;
  EXPECT_THAT(ProgressText(verify, 100), Not(HasSubstr("item")));
  EXPECT_EQ(ProgressText({.items_done = 1, .items_known = 4, .all_known = true}, 60),
            "[######..................] 1/4 items");
  WorkProgress listing = kSome;
  listing.all_known = false;
  EXPECT_THAT(ProgressText(listing, 100), HasSubstr("of 200.0 MB+"));
  EXPECT_THAT(ProgressText(listing, 100), Not(HasSubstr("ETA")));
}

TEST(RecentRate, IsThatOfTheLastSeconds) {
  FakeClock clock;
  RecentRate rate;
  std::uint64_t bytes = 0;
  EXPECT_EQ(rate.bytes_per_second(), 0);
  for (int i = 0; i < 100; ++i) {  // 20 s of 1 MB/s
    rate.Add(clock.Now(), bytes);
    clock.Advance(milliseconds(200));
    bytes += 200'000;
  }
  EXPECT_NEAR(rate.bytes_per_second(), 1e6, 1);
  for (int i = 0; i < 30; ++i) {  // 6 s of 10 MB/s
    rate.Add(clock.Now(), bytes);
    clock.Advance(milliseconds(200));
    bytes += 2'000'000;
  }
  EXPECT_NEAR(rate.bytes_per_second(), 1e7, 1e4);
  for (int i = 0; i < 30; ++i) {
    rate.Add(clock.Now(), bytes);
    clock.Advance(milliseconds(200));
  }
  EXPECT_EQ(rate.bytes_per_second(), 0) << "a transfer that stands still is seen";
}

}  // namespace
}  // namespace millrace::cli
