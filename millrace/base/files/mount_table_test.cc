#include "millrace/base/files/mount_table.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace millrace {
namespace {

TEST(MountTable, ReadsTheFieldsAroundTheOptionalOnes) {
  const auto mounts = ParseMountTable(
      "22 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw\n"
      "36 22 0:45 /sub /mnt/a\\040b rw,nosuid shared:7 master:1 - fuse.millrace s3://bucket/a\\134b rw,user_id=0\n");
  ASSERT_EQ(mounts.size(), 2);
  EXPECT_EQ(mounts[0].device, "8:1");
  EXPECT_EQ(mounts[0].point, "/");
  EXPECT_EQ(mounts[0].type, "ext4");
  EXPECT_EQ(mounts[1].device, "0:45");
  EXPECT_EQ(mounts[1].root, "/sub");
  EXPECT_EQ(mounts[1].point, "/mnt/a b");
  EXPECT_EQ(mounts[1].type, "fuse.millrace");
  EXPECT_EQ(mounts[1].source, "s3://bucket/a\\b");
}

TEST(MountTable, LeavesOutLinesOfAnotherForm) {
  EXPECT_TRUE(ParseMountTable("").empty());
  EXPECT_TRUE(
      ParseMountTable("36 22 0:45 / /mnt\n36 22 0:45 / /mnt rw - ext4\n36 22 0:45 / /mnt rw ext4 dev rw\n").empty());
  EXPECT_EQ(ParseMountTable("1 1 0:1 / /a\\9z9\\04 rw - t s rw").at(0).point, "/a\\9z9\\04");
}

TEST(MountTable, KnowsTheMountsOfThisProcess) {
  const auto mounts = ReadMountTable();
  ASSERT_TRUE(mounts) << mounts.error().ToString();
  EXPECT_TRUE(std::ranges::any_of(*mounts, [](const MountEntry& mount) { return mount.point == "/proc"; }));
}

}  // namespace
}  // namespace millrace
