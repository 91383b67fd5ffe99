// What tests of a real mount begin with.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/mount/mount_program.h"

namespace millrace {

/// Has an endpoint with a bucket; the test mounts it. Skips where nothing can be mounted.
class MountFixture : public testing::Test {
 protected:
  void SetUp() override {
    if (Status available = MountProgram::Available(); !available) GTEST_SKIP() << available.error().ToString();
    mount_ = std::make_unique<MountProgram>();
  }
  void MustMount(std::vector<std::string> flags = {}) {
    auto mounted = mount_->Mount(std::move(flags));
    ASSERT_EQ(mounted.status, 0) << mounted.output;
  }
  /// And the daemon has ended.
  void MustUmount() {
    auto gone = mount_->Umount();
    ASSERT_EQ(gone.status, 0) << gone.output << mount_->log();
    EXPECT_EQ(mount_->daemon(), 0);
  }
  /// A shell command in the mount succeeds; with this output, if any is given.
  void Check(const std::string& command, const std::string& output = "") {
    auto ran = mount_->Shell(command);
    EXPECT_EQ(ran.status, 0) << command << ": " << ran.output << mount_->log();
    if (!output.empty()) {
      EXPECT_EQ(ran.output, output) << command;
    }
  }

  std::unique_ptr<MountProgram> mount_;
};

}  // namespace millrace
