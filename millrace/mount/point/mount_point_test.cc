#include "millrace/mount/point/mount_point.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "millrace/base/files/files.h"

namespace millrace::mount {
namespace {

namespace fs = std::filesystem;

TEST(MountPoint, ResolvesSymbolicLinks) {
  const TempDir dir = *TempDir::Create();
  const fs::path real = fs::canonical(dir.path());
  fs::create_directory(real / "point");
  fs::create_directory_symlink("point", real / "link");
  EXPECT_EQ(*ResolveMountPoint((real / "link/").string()), (real / "point").string());
  EXPECT_EQ(ResolveMountPoint((real / "none").string()).error().code(), Code::kNotFound);
}

TEST(MountPoint, FindsMountsAtExactlyThePath) {
  EXPECT_TRUE(FindMount("/proc")->has_value());
  EXPECT_FALSE(FindMount("/proc/self")->has_value());
}

TEST(MountPoint, PreparesEmptyFoldersOnly) {
  if (::access("/dev/fuse", R_OK | W_OK) != 0) GTEST_SKIP() << "there is no usable /dev/fuse";
  const TempDir dir = *TempDir::Create();
  const fs::path real = fs::canonical(dir.path());
  EXPECT_EQ(*PrepareMountPoint(real.string()), real.string());
  ASSERT_TRUE(WriteFileAtomic(real / "file", AsBytes("x")));
  EXPECT_EQ(PrepareMountPoint(real.string()).error().code(), Code::kNotEmpty);
  EXPECT_EQ(PrepareMountPoint((real / "file").string()).error().code(), Code::kNotDirectory);
}

TEST(MountPoint, KnowsTheErrorsOfADaemonThatIsGone) {
  EXPECT_TRUE(IsDisconnectedError(ENOTCONN));
  EXPECT_FALSE(IsDisconnectedError(EACCES));
}

}  // namespace
}  // namespace millrace::mount
