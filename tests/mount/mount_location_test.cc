// A mount and its s3:// URL are two names of one tree: commands that move or delete know that.
#include <gmock/gmock.h>

#include <filesystem>

#include "tests/mount/mount_fixture.h"

namespace millrace {
namespace {

class MountLocation : public MountFixture {
 protected:
  std::string Under(const std::string& name) { return (mount_->point() / name).string(); }
};

TEST_F(MountLocation, AMoveBetweenAMountAndItsUrlDestroysNothing) {
  mount_->Put("data/a", "a");
  mount_->Put("data/sub/b", "b");
  MustMount();
  const std::string url = "s3://bucket/data/";
  EXPECT_EQ(mount_->Run({"mv", Under("data/a"), url + "a"}).status, 2);
  EXPECT_EQ(mount_->Run({"mv", url + "a", Under("data/a")}).status, 2);
  EXPECT_EQ(mount_->Run({"mv", "-r", Under("data/"), url}).status, 2);
  EXPECT_EQ(mount_->Run({"mv", "-r", url, Under("data/")}).status, 2);
  EXPECT_EQ(mount_->Run({"mv", url + "*", Under("data/")}).status, 3);
  EXPECT_EQ(mount_->Run({"sync", "--delete", Under("data/sub"), url}).status, 2);
  EXPECT_EQ(mount_->Run({"sync", "--delete", url + "sub/", Under("data")}).status, 2);
  EXPECT_EQ(mount_->Run({"sync", "--delete", url, mount_->scratch().string()}).status, 2) << "it holds the mount";
  EXPECT_EQ(mount_->Object("data/a"), "a");
  EXPECT_EQ(mount_->Object("data/sub/b"), "b");
}

TEST_F(MountLocation, FilesMoveInAndOutOfAMount) {
  mount_->Put("data/a", "a");
  MustMount();
  EXPECT_EQ(mount_->Run({"mv", Under("data/a"), "s3://bucket/other/a"}).status, 0);
  EXPECT_EQ(mount_->Object("other/a"), "a");
  Check("test ! -e data/a");
  EXPECT_EQ(mount_->Run({"mv", "s3://bucket/other/a", Under("data/b")}).status, 0);
  Check("cat data/b", "a");
}

TEST_F(MountLocation, AMountOfAPrefixKnowsItsKeys) {
  mount_->Put("deep/data/a", "a");
  ASSERT_EQ(mount_->MountUrl("s3://bucket/deep").status, 0);
  EXPECT_EQ(mount_->Run({"mv", Under("data/a"), "s3://bucket/deep/data/a"}).status, 2);
  EXPECT_EQ(mount_->Object("deep/data/a"), "a");
}

}  // namespace
}  // namespace millrace
