#include "millrace/csi/mounter/mount_records.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>

#include "millrace/base/files/files.h"

namespace millrace::csi {
namespace {

TEST(MountRecords, AreThereForTheNextMounter) {
  const TempDir folder = *TempDir::Create();
  const MountRecords records(folder.path() / "mounts");
  EXPECT_TRUE(records.All().empty()) << "there is no folder yet";
  const MountRecord first{"v1", "/pods/1", "f1", true, 7}, second{"v2", "/pods/2", "f2", false, std::uint64_t{1} << 40};
  ASSERT_TRUE(records.Write(first));
  ASSERT_TRUE(records.Write(second));
  const MountRecords next(folder.path() / "mounts");
  EXPECT_EQ(next.All().size(), 2U);
  const auto read = next.Read("/pods/2");
  ASSERT_TRUE(read);
  EXPECT_EQ(read->volume, "v2");
  EXPECT_EQ(read->fingerprint, "f2");
  EXPECT_FALSE(read->driver_identity);
  EXPECT_EQ(read->memory, std::uint64_t{1} << 40);
  EXPECT_TRUE(next.Read("/pods/1")->driver_identity);
  EXPECT_FALSE(next.Read("/pods/3"));
  struct stat info{};
  ASSERT_EQ(::stat((records.FolderOf("/pods/1") / "mount.json").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600U);
}

TEST(MountRecords, ForgettingLeavesTheLog) {
  const TempDir folder = *TempDir::Create();
  const MountRecords records(folder.path() / "mounts");
  ASSERT_TRUE(records.Write({"v", "/pods/1", "f", true, 7}));
  std::ofstream(records.FolderOf("/pods/1") / "log") << "why it failed";
  records.RemoveRecord("/pods/1");
  EXPECT_FALSE(records.Read("/pods/1"));
  EXPECT_TRUE(std::filesystem::exists(records.FolderOf("/pods/1") / "log"));
  records.Remove("/pods/1");
  EXPECT_FALSE(std::filesystem::exists(records.FolderOf("/pods/1")));
}

TEST(MountRecords, WhatIsNoRecordDoesNotCount) {
  const TempDir folder = *TempDir::Create();
  const MountRecords records(folder.path() / "mounts");
  ASSERT_TRUE(records.Write({"v", "/pods/1", "f", true, 7}));
  for (const char* text : {"", "{", "[]", R"({"format": "another"})"}) {
    std::ofstream(records.FolderOf("/pods/1") / "mount.json") << text;
    EXPECT_FALSE(records.Read("/pods/1")) << text;
    EXPECT_TRUE(records.All().empty()) << text;
  }
}

}  // namespace
}  // namespace millrace::csi
