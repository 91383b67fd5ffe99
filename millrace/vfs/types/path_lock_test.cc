#include "millrace/vfs/types/path_lock.h"

#include <gtest/gtest.h>

#include <thread>

namespace millrace::vfs {
namespace {

/// Returns a stop token that has fired: calls that would wait fail at once.
std::stop_token Impatient() {
  std::stop_source stop;
  stop.request_stop();
  return stop.get_token();
}

class PathLockTest : public testing::Test {
 protected:
  bool MayLockShared(const std::string& path) { return lock.LockShared(path, Impatient()).has_value(); }
  bool MayLockExclusive(const std::string& path) { return lock.LockExclusive({path}, Impatient()).has_value(); }
  PathLock lock;
};

TEST_F(PathLockTest, SharedLocksGoTogetherAndExclusiveLocksAlone) {
  {
    auto shared = lock.LockShared("a/f");
    EXPECT_TRUE(MayLockShared("a/f"));
    EXPECT_FALSE(MayLockExclusive("a/f"));
    EXPECT_TRUE(MayLockExclusive("a/g"));
    EXPECT_TRUE(MayLockExclusive("a/f2"));
  }
  {
    auto exclusive = lock.LockExclusive({"a/f", "b/f"});
    for (const char* path : {"a/f", "b/f"}) {
      EXPECT_FALSE(MayLockShared(path));
      EXPECT_FALSE(MayLockExclusive(path));
    }
    EXPECT_TRUE(MayLockShared("a/f/below"));
    EXPECT_TRUE(MayLockShared("a/g"));
    EXPECT_FALSE(MayLockExclusive("a/"));
  }
  EXPECT_TRUE(MayLockShared("a/f"));
  EXPECT_TRUE(MayLockExclusive("b/f"));
}

TEST_F(PathLockTest, ADirectoryIsLockedWithAllThatIsBelow) {
  auto exclusive = lock.LockExclusive({"a/b/"});
  for (const char* path : {"a/b", "a/b/", "a/b/f", "a/b/c/d"}) {
    EXPECT_FALSE(MayLockShared(path));
    EXPECT_FALSE(MayLockExclusive(path));
  }
  EXPECT_FALSE(MayLockExclusive("a/"));
  EXPECT_TRUE(MayLockShared("a/bc"));
  EXPECT_TRUE(MayLockExclusive("a/c/"));
}

TEST_F(PathLockTest, AnExclusiveLockThatIsCancelledLeavesNothingBehind) {
  auto shared = lock.LockShared("f");
  EXPECT_EQ(lock.LockExclusive({"f", "g"}, Impatient()).error().code(), Code::kCancelled);
  EXPECT_TRUE(MayLockShared("f"));
  EXPECT_TRUE(MayLockShared("g"));
}

TEST_F(PathLockTest, OneNameMayBeLockedTwiceByOneHolder) {
  {
    auto exclusive = lock.LockExclusive({"f", "f"});
  }
  EXPECT_TRUE(MayLockShared("f"));
}

TEST_F(PathLockTest, AnExclusiveLockThatRefusesTellsWhoWaitsAndWhoComes) {
  auto exclusive = lock.LockExclusive({"a/", "b/"});
  ASSERT_TRUE(exclusive);
  Status waited;
  {
    const std::jthread waiting([&] {
      if (auto shared = lock.LockShared("a/f"); !shared) waited = Fail(shared.error());
    });
    exclusive->Refuse("not settled");
  }
  ASSERT_FALSE(waited);
  EXPECT_EQ(waited.error().code(), Code::kBusy);
  EXPECT_EQ(waited.error().message(), "not settled");
  for (std::string path : {"a", "a/g", "b/x/y"}) EXPECT_EQ(lock.LockShared(path).error().code(), Code::kBusy) << path;
  EXPECT_EQ(lock.LockExclusive({"c", "b"}).error().code(), Code::kBusy);
  EXPECT_TRUE(MayLockShared("ab"));
  *exclusive = PathLock::ExclusiveLock();
  EXPECT_TRUE(MayLockShared("a/f"));
  EXPECT_TRUE(lock.LockExclusive({"a/", "b/"}));
}

TEST_F(PathLockTest, ExclusiveLocksOfTheSameNamesDoNotDeadlock) {
  int counts[2] = {};
  auto work = [&](const std::vector<std::string>& names) {
    for (int i = 0; i < 2'000; ++i) {
      auto exclusive = lock.LockExclusive(names);
      ++counts[0], ++counts[1];
    }
  };
  std::thread one(work, std::vector<std::string>{"f", "g"}), other(work, std::vector<std::string>{"g", "f"});
  one.join(), other.join();
  EXPECT_EQ(counts[0], 4'000);
  EXPECT_EQ(counts[1], 4'000);
}

}  // namespace
}  // namespace millrace::vfs
