#include "millrace/base/files/folder_watch.h"

#include <gtest/gtest.h>

#include <filesystem>

namespace millrace {
namespace {

constexpr Duration kLong = std::chrono::minutes(5), kShort = std::chrono::milliseconds(1);

class FolderWatchTest : public testing::Test {
 protected:
  /// Returns whether a change ends a wait before its time.
  bool SeesChange(FolderWatch& watch) {
    const TimePoint before = SystemClock().Now();
    EXPECT_TRUE(watch.Wait(kLong, kShort, {}));
    return SystemClock().Now() - before < kLong;
  }
  TempDir folder_ = std::move(*TempDir::Create());
};

TEST_F(FolderWatchTest, SeesChangesAtEveryDepth) {
  std::filesystem::create_directories(folder_.path() / "a/b");
  auto watch = FolderWatch::Open(folder_.path().string());
  ASSERT_TRUE(watch) << watch.error().ToString();
  for (const char* name : {"top", "a/b/deep"}) {
    ASSERT_TRUE(WriteFileAtomic(folder_.path() / name, AsBytes("x")));
    EXPECT_TRUE(SeesChange(*watch)) << name;
  }
  std::filesystem::remove(folder_.path() / "a/b/deep");
  EXPECT_TRUE(SeesChange(*watch));
}

TEST_F(FolderWatchTest, EndsInTimeAndOnAStop) {
  auto watch = FolderWatch::Open(folder_.path().string());
  ASSERT_TRUE(watch);
  EXPECT_TRUE(watch->Wait(kShort, kShort, {}));
  std::stop_source stop;
  stop.request_stop();
  EXPECT_TRUE(watch->Wait(kLong, kShort, stop.get_token()));
}

TEST_F(FolderWatchTest, AChangeBeforeTheWaitCounts) {
  auto watch = FolderWatch::Open(folder_.path().string());
  ASSERT_TRUE(watch);
  ASSERT_TRUE(WriteFileAtomic(folder_.path() / "early", AsBytes("x")));
  EXPECT_TRUE(SeesChange(*watch));
}

}  // namespace
}  // namespace millrace
