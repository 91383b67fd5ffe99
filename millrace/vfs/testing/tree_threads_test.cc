// Threads that share a tree: what one does while another is in the middle of something.
#include <gtest/gtest.h>

#include <thread>

#include "millrace/vfs/testing/driver.h"

namespace millrace::vfs {
namespace {

constexpr Duration kLong = std::chrono::hours(1);

class TreeThreadsTest : public testing::Test {
 protected:
  /// Runs `second` once `first` waits for the store, which then goes on.
  void Run(const std::function<void()>& first, const std::function<void()>& second) {
    std::thread one(first);
    d.clock.AwaitSleepers(1);
    std::thread other(second);
    d.clock.Advance(kLong);
    one.join(), other.join();
  }
  Driver d;
};

TEST_F(TreeThreadsTest, OfTwoChangesOfANameOneFindsTheOtherDone) {
  d.Put("f", "content");
  d.store->Add({.operation = object::Operation::kDelete, .fault = {.latency = kLong}});
  Run([&] { EXPECT_TRUE(d.Unlink("f")); }, [&] { EXPECT_EQ(CodeOf(d.Rename("f", "g")), Code::kNotFound); });
  EXPECT_EQ(d.Object("f"), "<absent>");
  EXPECT_EQ(d.Object("g"), "<absent>");
}

TEST_F(TreeThreadsTest, AFileThatIsClosedWhileItsRemovalFailsIsPublished) {
  d.Put("f", "old");
  auto file = *d.Open("f", {.write = true, .truncate = true});
  const std::string content = Noise(9'000);
  ASSERT_TRUE(file->Write(0, AsBytes(content)));
  d.store->Add({.operation = object::Operation::kDelete, .fault = {.code = Code::kPermissionDenied, .latency = kLong}});
  Run([&] { EXPECT_EQ(CodeOf(d.Unlink("f")), Code::kPermissionDenied); },
      [&] {
        EXPECT_TRUE(file->Flush());
        EXPECT_TRUE(file->Close());
      });
  EXPECT_TRUE(d.Object("f") == content);
  EXPECT_TRUE(object::ListUploads(*d.inner, "")->empty());
}

TEST_F(TreeThreadsTest, AFileThatIsWrittenWhileItIsRenamedIsPublishedUnderItsNewName) {
  d.Put("f", Noise(9'000));
  auto file = *d.Open("f", {.write = true});
  d.store->Add({.operation = object::Operation::kCopy, .fault = {.latency = kLong}});
  Run([&] { EXPECT_TRUE(d.Rename("f", "g")); },
      [&] {
        EXPECT_TRUE(file->Write(9'000, AsBytes("more")));
        EXPECT_TRUE(file->Flush());
        EXPECT_TRUE(file->Close());
      });
  EXPECT_TRUE(d.Object("g") == Noise(9'000) + "more");
  EXPECT_EQ(d.Object("f"), "<absent>");
}

TEST(TreeTogetherTest, ThreadsShareATree) {
  Driver d({}, Driver::Time::kRuns);
  std::vector<std::thread> threads;
  for (int t = 0; t < 6; ++t) {
    threads.emplace_back([&, t] {
      Random random(t);
      for (int i = 0; i < 40; ++i) {
        const std::string path = fmt::format("f{}", random.Below(4)), mine = fmt::format("own{}", t);
        switch (random.Below(6)) {
          case 0:
            (void)d.Write(path, Noise(random.Below(20'000), random.Next()));
            break;
          case 1:
            (void)d.Read(path);
            break;
          case 2:
            (void)d.Unlink(path);
            break;
          case 3:
            (void)d.Rename(path, fmt::format("f{}", random.Below(4)));
            break;
          case 4:
            EXPECT_TRUE(d.List());
            break;
          default: {
            const std::string content = Noise(9000, random.Next());
            Status written = d.Write(mine, content);
            EXPECT_TRUE(written) << written.error().ToString();
            auto read = d.Read(mine);
            ASSERT_TRUE(read) << read.error().ToString();
            EXPECT_EQ(*read, content);
          }
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(object::ListUploads(*d.inner, "")->empty());
  EXPECT_EQ(d.budget.used(), d.cache->capacity());
}

}  // namespace
}  // namespace millrace::vfs
