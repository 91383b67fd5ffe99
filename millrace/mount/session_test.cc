// A mount served inside the test process, as a program that links this module does.
#include "millrace/mount/session.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <future>
#include <sstream>
#include <thread>

#include "millrace/base/files/files.h"
#include "millrace/mount/check.h"
#include "millrace/mount/point/control.h"
#include "millrace/mount/point/mount_point.h"
#include "millrace/mount/unmount.h"
#include "millrace/object/open/open.h"

namespace millrace::mount {
namespace {

namespace fs = std::filesystem;

class Session : public testing::Test {
 protected:
  void SetUp() override {
    if (::access("/dev/fuse", R_OK | W_OK) != 0 || (::geteuid() != 0 && ::access("/usr/bin/fusermount3", X_OK) != 0)) {
      GTEST_SKIP() << "nothing can be mounted here";
    }
    for (const char* folder : {"bucket", "point"}) fs::create_directory(dir_.path() / folder);
    connection_ = *object::OpenConnection({});
    options_.source.url = (dir_.path() / "bucket").string();
    options_.source.staging_directory = dir_.path() / "staging";
    options_.mount_point = *PrepareMountPoint((dir_.path() / "point").string());
    options_.memory_bytes = 128 * kMiB;
  }

  /// Serves on a thread of its own until the mount is live.
  void Start() {
    std::promise<void> live;
    served_ = std::async(std::launch::async, [&] {
      return Serve(
          *connection_, options_,
          [&]() -> Status {
            live.set_value();
            return {};
          },
          stop_.get_token());
    });
    auto is_live = live.get_future();
    while (is_live.wait_for(std::chrono::milliseconds(10)) != std::future_status::ready) {
      ASSERT_NE(served_.wait_for(std::chrono::seconds(0)), std::future_status::ready)
          << served_.get().error().ToString();
    }
  }

  TempDir dir_ = *TempDir::Create();
  std::unique_ptr<object::Connection> connection_;
  SessionOptions options_;
  std::stop_source stop_;
  std::future<Status> served_;
};

TEST_F(Session, ServesUntilItIsStopped) {
  Start();
  ASSERT_TRUE(CheckMount(options_.mount_point, std::chrono::seconds(10)));
  // Another process writes, for a process that serves a mount must not wait for it in the kernel with all its threads.
  ASSERT_EQ(std::system(("echo hello > " + options_.mount_point + "/file").c_str()), 0);
  EXPECT_EQ(QueryStats(options_.mount_point)->at("data").at("written_bytes"), 6);
  stop_.request_stop();
  const Status served = served_.get();
  EXPECT_TRUE(served) << served.error().ToString();
  EXPECT_FALSE(FindMount(options_.mount_point)->has_value());
  EXPECT_EQ(*ReadFile(dir_.path() / "bucket/file", 100), "hello\n");
}

TEST_F(Session, RefusesTooLittleMemory) {
  options_.memory_bytes = 1 * kMiB;
  const Status served = Serve(*connection_, options_, nullptr, stop_.get_token());
  ASSERT_FALSE(served);
  EXPECT_EQ(served.error().code(), Code::kInvalidArgument);
}

TEST_F(Session, RecoveryReportsThatNothingWasLeft) {
  const auto report = Recover(*connection_, options_.source, options_.memory_bytes, stop_.get_token());
  ASSERT_TRUE(report) << report.error().ToString();
  EXPECT_TRUE(report->result);
  EXPECT_EQ(report->files_published, 0);
  EXPECT_EQ(report->files_left, 0);
  EXPECT_EQ(report->staging_directory, options_.source.staging_directory);
}

TEST_F(Session, UnmountNeedsAMount) {
  EXPECT_EQ(Unmount(options_.mount_point, {}, {}).error().code(), Code::kNotFound);
}

}  // namespace
}  // namespace millrace::mount
