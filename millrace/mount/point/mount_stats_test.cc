#include "millrace/mount/point/mount_stats.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/base/files/files.h"
#include "millrace/base/threads/memory_budget.h"
#include "millrace/mount/point/control.h"
#include "millrace/object/local/memory_store.h"

namespace millrace::mount {
namespace {

using testing::HasSubstr;

class MountStatsTest : public testing::Test {
 protected:
  std::shared_ptr<object::Store> store_ = object::MakeMemoryStore();
  MemoryBudget budget_{64 * kMiB};
  std::unique_ptr<cache::BlockCache> cache_ = *cache::BlockCache::Open(*store_, budget_, {.memory_bytes = kMiB});
  std::unique_ptr<vfs::Tree> tree_ = *vfs::Tree::Open(*store_, *cache_, budget_, {.read_only = true});
  MountStats stats_{*tree_, *cache_, "s3://bucket", "/mnt/bucket", Json::object()};
};

TEST_F(MountStatsTest, CountsOperationsBytesAndFailures) {
  stats_.Count(MountOperation::kRead, std::chrono::milliseconds(2));
  stats_.Count(MountOperation::kRead, std::chrono::milliseconds(4));
  stats_.CountRead(1000);
  stats_.CountFailure("read");
  stats_.CountFailure("no such operation");
  const Json snapshot = stats_.Snapshot();
  EXPECT_EQ(snapshot["source"], "s3://bucket");
  EXPECT_EQ(snapshot["data"]["read_bytes"], 1000);
  EXPECT_EQ(snapshot["operations"]["read"]["count"], 2);
  EXPECT_EQ(snapshot["operations"]["read"]["failures"], 1);
  EXPECT_NEAR(snapshot["operations"]["read"]["seconds"].get<double>(), 0.006, 1e-6);
  EXPECT_FALSE(snapshot["operations"].contains("write"));
  EXPECT_THAT(stats_.PrometheusText(), HasSubstr("millrace_mount_read_bytes_total 1000"));
}

TEST_F(MountStatsTest, FitsIntoAnIoctlWithEveryOperation) {
  for (std::size_t i = 0; i < kMountOperationNames.size(); ++i) {
    for (int times = 0; times < 100; ++times) {
      stats_.Count(static_cast<MountOperation>(i), std::chrono::nanoseconds(123'456'789));
    }
  }
  EXPECT_LE(DumpJson(stats_.Snapshot()).size(), kMaxStatsBytes);
}

}  // namespace
}  // namespace millrace::mount
