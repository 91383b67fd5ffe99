#include "millrace/base/files/beneath.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <fstream>
#include <thread>

#include "millrace/base/hash/random.h"
#include "millrace/base/process/refused_call.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

/// A folder "root" with folders, files and links, and a folder beside it that nothing may reach.
class BeneathTest : public testing::Test {
 protected:
  BeneathTest() : temp_(std::move(*TempDir::Create())), path_(temp_.path() / "root") {
    fs::create_directories(path_ / "a/b/c");
    fs::create_directories(path_ / "d");
    fs::create_directory(temp_.path() / "outside");
    for (const fs::path& file : {path_ / "f", path_ / "a/f", path_ / "a/b/c/f", temp_.path() / "outside/f"}) {
      std::ofstream(file) << "x";
    }
    for (const auto& [target, link] :
         std::initializer_list<std::pair<const char*, const char*>>{{"b", "a/to-b"},
                                                                    {"../d", "a/to-d"},
                                                                    {"/a/b", "d/absolute"},
                                                                    {"../../outside", "d/out"},
                                                                    {"loop", "loop"},
                                                                    {"/", "d/top"},
                                                                    {"nowhere", "dangling"},
                                                                    {"f/", "f-slash"},
                                                                    {"a/b/../to-b/c", "long"}}) {
      fs::create_symlink(target, path_ / link);
    }
    root_ = *OpenFile(path_, O_PATH | O_DIRECTORY);
  }

  /// Returns the inode that was opened, or the error.
  static std::string Found(const UniqueFd& fd) {
    if (!fd) return std::string("error ") + std::to_string(errno);
    struct stat info{};
    return ::fstat(fd.get(), &info) == 0 ? "inode " + std::to_string(info.st_ino) : "no inode";
  }
  static std::string InodeOf(const fs::path& path) {
    struct stat info{};
    return ::stat(path.c_str(), &info) == 0 ? "inode " + std::to_string(info.st_ino) : "no inode";
  }

  TempDir temp_;
  fs::path path_;
  UniqueFd root_;
};

TEST_F(BeneathTest, LinksResolveAsIfTheFolderWereTheRoot) {
  for (const auto& [path, found] :
       std::initializer_list<std::pair<const char*, const char*>>{{"", ""},
                                                                  {".", ""},
                                                                  {"/", ""},
                                                                  {"..", ""},
                                                                  {"../..", ""},
                                                                  {"a//b/./c", "a/b/c"},
                                                                  {"/a/f", "a/f"},
                                                                  {"a/to-b/c/f", "a/b/c/f"},
                                                                  {"a/to-d", "d"},
                                                                  {"d/absolute/c", "a/b/c"},
                                                                  {"d/top/f", "f"},
                                                                  {"a/b/../../../../f", "f"},
                                                                  {"long/f", "a/b/c/f"},
                                                                  {"long/../../f", "a/f"}}) {
    EXPECT_EQ(Found(WalkBeneath(root_.get(), path, O_RDONLY, BeneathLinks::kInRoot)), InodeOf(path_ / found)) << path;
  }
  for (const auto& [path, error] : std::initializer_list<std::pair<const char*, int>>{{"d/out", ENOENT},
                                                                                      {"d/out/f", ENOENT},
                                                                                      {"../outside/f", ENOENT},
                                                                                      {"loop", ELOOP},
                                                                                      {"loop/f", ELOOP},
                                                                                      {"f/x", ENOTDIR},
                                                                                      {"f/.", ENOTDIR},
                                                                                      {"f-slash", ENOTDIR},
                                                                                      {"dangling", ENOENT}}) {
    EXPECT_FALSE(WalkBeneath(root_.get(), path, O_RDONLY, BeneathLinks::kInRoot)) << path;
    EXPECT_EQ(errno, error) << path;
  }
}

TEST_F(BeneathTest, RefusedLinksAndWaysOutFail) {
  EXPECT_EQ(Found(WalkBeneath(root_.get(), "a/b/../b/c/f", O_RDONLY, BeneathLinks::kRefuse)),
            InodeOf(path_ / "a/b/c/f"));
  for (const auto& [path, error] : std::initializer_list<std::pair<const char*, int>>{
           {"a/to-b", ELOOP}, {"a/to-b/c", ELOOP}, {"..", EXDEV}, {"a/../..", EXDEV}, {"/a", EXDEV}, {"x/y", ENOENT}}) {
    EXPECT_FALSE(WalkBeneath(root_.get(), path, O_RDONLY | O_DIRECTORY, BeneathLinks::kRefuse)) << path;
    EXPECT_EQ(errno, error) << path;
  }
}

TEST_F(BeneathTest, FilesAreMadeWhereALinkLeads) {
  EXPECT_TRUE(WalkBeneath(root_.get(), "d/new", O_WRONLY | O_CREAT, BeneathLinks::kInRoot));
  EXPECT_TRUE(WalkBeneath(root_.get(), "dangling", O_WRONLY | O_CREAT, BeneathLinks::kInRoot));
  EXPECT_TRUE(fs::exists(path_ / "nowhere"));
  EXPECT_FALSE(WalkBeneath(root_.get(), "a/to-b", O_WRONLY | O_CREAT | O_EXCL, BeneathLinks::kInRoot));
  EXPECT_EQ(errno, EEXIST);
}

// The walk finds what the kernel finds, for random paths.
TEST_F(BeneathTest, TheWalkAgreesWithTheKernel) {
  const std::array<const char*, 16> names = {"a",   "b",    "c",   "d",        "f",  "to-b", "to-d", "absolute",
                                             "out", "loop", "top", "dangling", "..", ".",    "",     "long"};
  Random random(1);
  for (int i = 0; i < 20'000; ++i) {
    std::string path = random.Below(8) == 0 ? "/" : "";
    for (std::size_t left = 1 + random.Below(6); left > 0; --left) {
      path += names[random.Below(names.size())];
      if (left > 1) path += '/';
    }
    for (const BeneathLinks links : {BeneathLinks::kInRoot, BeneathLinks::kRefuse}) {
      for (const int flags : {O_RDONLY, O_RDONLY | O_DIRECTORY, O_PATH | O_NOFOLLOW}) {
        const std::string walked = Found(WalkBeneath(root_.get(), path, flags, links));
        ASSERT_EQ(walked.substr(0, 5) == "inode",
                  Found(OpenBeneath(root_.get(), path, flags, links)).substr(0, 5) == "inode")
            << path << " with flags " << flags << ": " << walked;
        if (walked.starts_with("inode")) {
          ASSERT_EQ(walked, Found(OpenBeneath(root_.get(), path, flags, links))) << path;
        }
      }
    }
  }
}

// One thread swaps a folder for a link that leads out, or moves it, while paths through it are opened.
TEST_F(BeneathTest, NoRaceLeadsOut) {
  fs::create_directories(path_ / "m/n");
  fs::create_symlink(temp_.path() / "outside", path_ / "swap");
  const std::string outside = InodeOf(temp_.path() / "outside"), outside_file = InodeOf(temp_.path() / "outside/f");
  std::atomic<bool> done = false;
  std::thread mover([&] {
    while (!done) {
      ::renameat2(AT_FDCWD, (path_ / "m").c_str(), AT_FDCWD, (path_ / "swap").c_str(), RENAME_EXCHANGE);
      ::rename((path_ / "a/b").c_str(), (temp_.path() / "outside/b").c_str());
      ::rename((temp_.path() / "outside/b").c_str(), (path_ / "a/b").c_str());
    }
  });
  for (int i = 0; i < 4000; ++i) {
    for (const char* path : {"m", "m/f", "m/n/../f", "a/b/..", "a/b/c/../..", "a/b/c/../../../outside/f"}) {
      const std::string found = Found(WalkBeneath(root_.get(), path, O_RDONLY, BeneathLinks::kInRoot));
      EXPECT_TRUE(found != outside && found != outside_file) << path;
    }
  }
  done = true;
  mover.join();
}

TEST_F(BeneathTest, SystemsWithoutOpenat2HaveTheWalk) {
  for (const unsigned error : {unsigned{ENOSYS}, unsigned{EPERM}}) {
    std::thread([&] {
      if (!RefuseCall(SYS_openat2, error)) return;  // qemu-user has no seccomp, and no openat2 either
      EXPECT_EQ(Found(OpenBeneath(root_.get(), "d/absolute/c/f", O_RDONLY, BeneathLinks::kInRoot)),
                InodeOf(path_ / "a/b/c/f"));
      EXPECT_FALSE(OpenBeneath(root_.get(), "d/out/f", O_RDONLY, BeneathLinks::kInRoot));
      EXPECT_FALSE(OpenBeneath(root_.get(), "a/to-b", O_RDONLY, BeneathLinks::kRefuse));
      EXPECT_EQ(errno, ELOOP);
    }).join();
  }
}

}  // namespace
}  // namespace millrace
