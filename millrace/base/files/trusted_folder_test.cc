#include "millrace/base/files/trusted_folder.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

namespace millrace {
namespace {

namespace fs = std::filesystem;

constexpr FolderRole kRole = {.what = "the test folder", .cure = "choose another one with --test-dir"};
constexpr uid_t kStranger = 54321;

mode_t ModeOf(const fs::path& path) {
  struct stat info{};
  EXPECT_EQ(::lstat(path.c_str(), &info), 0) << path;
  return info.st_mode & 07777;
}

class TrustedFolder : public testing::Test {
 protected:
  static Result<UniqueFd> Open(const fs::path& path) { return OpenTrustedFolder(path, kRole, MissingFolder::kMake); }
  static void MustRefuse(const fs::path& path, std::string_view why, Code code = Code::kPermissionDenied) {
    auto opened = Open(path);
    ASSERT_FALSE(opened) << path;
    const std::string text = opened.error().ToString();
    EXPECT_EQ(opened.error().code(), code) << text;
    for (std::string_view part : {std::string_view(path.native()), why, kRole.what, kRole.cure}) {
      EXPECT_NE(text.find(part), std::string::npos) << part << " is not in: " << text;
    }
  }
  static void GiveToStranger(const fs::path& path) {
    ASSERT_EQ(::lchown(path.c_str(), kStranger, kStranger), 0) << path;
  }

  TempDir temp_ = *TempDir::Create();
  const fs::path top_ = temp_.path();
};

TEST_F(TrustedFolder, MakesWhatIsMissingForTheUserAlone) {
  ASSERT_TRUE(Open(top_ / "a/b/c"));
  EXPECT_EQ(ModeOf(top_ / "a"), 0700u);
  EXPECT_EQ(ModeOf(top_ / "a/b/c"), 0700u);
  auto missing = OpenTrustedFolder(top_ / "none", kRole, MissingFolder::kFail);
  EXPECT_EQ(missing.error().code(), Code::kNotFound);
  EXPECT_FALSE(fs::exists(top_ / "none"));
}

TEST_F(TrustedFolder, LeavesTheModeOfAFolderThatExists) {
  fs::create_directory(top_ / "a");
  ASSERT_EQ(::chmod((top_ / "a").c_str(), 0755), 0);
  ASSERT_TRUE(Open(top_ / "a"));
  EXPECT_EQ(ModeOf(top_ / "a"), 0755u);
}

TEST_F(TrustedFolder, RefusesAFolderThatIsALink) {
  fs::create_directory(top_ / "real");
  fs::create_directory_symlink(top_ / "real", top_ / "link");
  MustRefuse(top_ / "link", "symbolic link");
  MustRefuse(top_ / "link/", "symbolic link");
  fs::create_directory_symlink(top_ / "nowhere", top_ / "dangling");
  MustRefuse(top_ / "dangling", "symbolic link");
  EXPECT_FALSE(fs::exists(top_ / "nowhere"));
}

TEST_F(TrustedFolder, FollowsTheUsersOwnLinksOnTheWay) {
  fs::create_directories(top_ / "disk/home");
  fs::create_directory_symlink("disk/../disk/home", top_ / "home");
  ASSERT_TRUE(Open(top_ / "home/cache"));
  EXPECT_TRUE(fs::is_directory(top_ / "disk/home/cache"));
  fs::create_directory_symlink("loop", top_ / "loop");
  MustRefuse(top_ / "loop/cache", "circle");
}

TEST_F(TrustedFolder, RefusesWhatOthersMayWrite) {
  fs::create_directory(top_ / "open");
  ASSERT_EQ(::chmod((top_ / "open").c_str(), 0777), 0);
  MustRefuse(top_ / "open", "0777");
  MustRefuse(top_ / "open/below", "0777");
  ASSERT_EQ(::chmod((top_ / "open").c_str(), 01777), 0);
  MustRefuse(top_ / "open", "1777");
  EXPECT_TRUE(Open(top_ / "open/below")) << "it is sticky, as /tmp is";
}

TEST_F(TrustedFolder, NamesAFileInTheWay) {
  ASSERT_TRUE(WriteFileAtomic(top_ / "file", AsBytes("x")));
  MustRefuse(top_ / "file", "is not a folder", Code::kNotDirectory);
  MustRefuse(top_ / "file/below", "is not a folder", Code::kNotDirectory);
}

class TrustedFolderOfStrangers : public TrustedFolder {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "only root can give files to other users";
  }
};

TEST_F(TrustedFolderOfStrangers, RefusesAFolderOfAnotherUser) {
  fs::create_directory(top_ / "theirs");
  GiveToStranger(top_ / "theirs");
  MustRefuse(top_ / "theirs", "user 54321");
}

TEST_F(TrustedFolderOfStrangers, RefusesAGroupOfOthers) {
  fs::create_directory(top_ / "group");
  ASSERT_EQ(::chown((top_ / "group").c_str(), 0, kStranger), 0);
  ASSERT_EQ(::chmod((top_ / "group").c_str(), 0775), 0);
  MustRefuse(top_ / "group", "0775");
  MustRefuse(top_ / "group/below", "0775");
  ASSERT_EQ(::chown((top_ / "group").c_str(), 0, 0), 0);
  EXPECT_TRUE(Open(top_ / "group")) << "nobody else is in the group";
}

TEST_F(TrustedFolderOfStrangers, NeverFollowsALinkOfAnotherUser) {
  fs::create_directories(top_ / "victim/cache");
  fs::create_directory_symlink(top_ / "victim", top_ / "link");
  GiveToStranger(top_ / "link");
  MustRefuse(top_ / "link/cache", "another user may have made");
}

TEST_F(TrustedFolderOfStrangers, AFolderOfAnotherUserOnTheWayMayNotHaveLinks) {
  fs::create_directories(top_ / "theirs");
  fs::create_directories(top_ / "victim");
  fs::create_directory_symlink(top_ / "victim",
                               top_ / "theirs/link");  // of root: the other user may have moved it here
  GiveToStranger(top_ / "theirs");
  EXPECT_TRUE(Open(top_ / "theirs/cache"));
  MustRefuse(top_ / "theirs/link/cache", "another user may have made");
  EXPECT_FALSE(fs::exists(top_ / "victim/cache"));
}

}  // namespace
}  // namespace millrace
