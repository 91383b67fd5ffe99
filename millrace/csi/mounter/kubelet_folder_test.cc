#include "millrace/csi/mounter/kubelet_folder.h"

#include <gtest/gtest.h>

namespace millrace::csi {
namespace {

class KubeletFolderTest : public testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::create_directories(root() / "pods/uid");
    std::filesystem::create_directory_symlink("/etc", root() / "pods/link");
    std::filesystem::create_directory_symlink(root(), temporary_.path() / "named");
  }
  std::filesystem::path root() const { return temporary_.path() / "kubelet"; }
  static Code CodeOf(const KubeletFolder& folder, const std::string& path) {
    auto found = folder.Find(path);
    return found ? Code::kInternal : found.error().code();
  }
  TempDir temporary_ = *TempDir::Create();
};

TEST_F(KubeletFolderTest, FindsTargetsBelowIt) {
  auto folder = KubeletFolder::Open(root());
  ASSERT_TRUE(folder);
  auto target = folder->Find(root() / "pods/uid/mount");
  ASSERT_TRUE(target) << target.error().ToString();
  EXPECT_EQ(target->name, "mount");
  EXPECT_EQ(target->path, (root() / "pods/uid/mount").string());
}

TEST_F(KubeletFolderTest, ResolvesItsOwnLink) {
  auto folder = KubeletFolder::Open(temporary_.path() / "named");
  ASSERT_TRUE(folder);
  auto target = folder->Find(temporary_.path() / "named/pods/uid/mount");
  ASSERT_TRUE(target) << target.error().ToString();
  EXPECT_EQ(target->path, (root() / "pods/uid/mount").string());
}

TEST_F(KubeletFolderTest, RefusesPathsElsewhere) {
  auto folder = KubeletFolder::Open(root());
  ASSERT_TRUE(folder);
  for (const std::string& path :
       {std::string("/etc/x"), root().string(), root().string() + "/../x", root().string() + "/pods/uid/../../x",
        root().string() + "/pods/link/x", root().string() + "x/y", std::string("pods/uid/x"), std::string(),
        root().string() + "/pods", root().string() + "/pki", root().string() + "/plugins/csi.millrace.dev/state"}) {
    EXPECT_EQ(CodeOf(*folder, path), Code::kInvalidArgument) << path;
  }
  EXPECT_EQ(CodeOf(*folder, root() / "pods/gone/mount"), Code::kNotFound);
}

}  // namespace
}  // namespace millrace::csi
