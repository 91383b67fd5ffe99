#include "millrace/base/files/special_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>

#include "millrace/base/files/files.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

class SpecialFileTest : public testing::Test {
 protected:
  std::string Path(const std::string& name) const { return folder_.path() / name; }
  std::string_view TypeAt(const std::string& name) const { return SpecialTypeAt(AT_FDCWD, Path(name)); }
  mode_t ModeOf(const std::string& name) const {
    struct stat status;
    EXPECT_EQ(stat(Path(name).c_str(), &status), 0);
    return status.st_mode & 0777;
  }

  TempDir folder_ = std::move(*TempDir::Create());
};

TEST_F(SpecialFileTest, NamesWhatARenameWouldDestroy) {
  ASSERT_EQ(mkfifo(Path("fifo").c_str(), 0600), 0);
  fs::create_symlink("fifo", Path("to-fifo"));
  const UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM, 0));
  sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
  ASSERT_LT(Path("socket").size(), sizeof address.sun_path);
  std::strcpy(address.sun_path, Path("socket").c_str());
  ASSERT_EQ(bind(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  EXPECT_EQ(TypeAt("fifo"), "a FIFO");
  EXPECT_EQ(TypeAt("to-fifo"), "a FIFO");
  EXPECT_EQ(TypeAt("socket"), "a socket");
  EXPECT_EQ(SpecialTypeAt(AT_FDCWD, "/dev/null"), "a character device");
  fs::create_symlink("/proc/self/fd/0", Path("stdin"));
  EXPECT_EQ(TypeAt("stdin"), "an open descriptor");
  for (const char* name : {"fifo", "to-fifo", "socket", "stdin"}) {
    const auto found = FindReplaced(AT_FDCWD, Path(name), "it");
    ASSERT_FALSE(found) << name;
    EXPECT_EQ(found.error().code(), Code::kInvalidArgument);
  }
}

TEST_F(SpecialFileTest, FilesAndLinksMayBeReplaced) {
  ASSERT_TRUE(WriteFileAtomic(Path("file"), {}, 0600));
  fs::create_symlink("file", Path("link"));
  fs::create_symlink("nowhere", Path("dangling"));
  fs::create_directory(Path("folder"));
  const auto file = FindReplaced(AT_FDCWD, Path("file"), "it");
  ASSERT_TRUE(file && *file);
  EXPECT_EQ((*file)->st_mode & 0777, 0600u);
  for (const char* name : {"link", "dangling", "folder", "absent"}) {
    const auto found = FindReplaced(AT_FDCWD, Path(name), "it");
    ASSERT_TRUE(found) << name;
    EXPECT_FALSE(*found) << name;
  }
}

TEST_F(SpecialFileTest, ANewFileHasTheAccessOfTheOld) {
  ASSERT_TRUE(WriteFileAtomic(Path("old"), {}, 0400));
  ASSERT_TRUE(WriteFileAtomic(Path("new"), {}, 0644));
  const auto old = FindReplaced(AT_FDCWD, Path("old"), "it");
  const UniqueFd fd = std::move(*OpenFile(Path("new"), O_RDWR));
  ASSERT_TRUE(KeepAccess(fd.get(), **old, S_IRUSR | S_IWUSR, "new"));
  EXPECT_EQ(ModeOf("new"), 0600u);
  ASSERT_TRUE(KeepAccess(fd.get(), **old, 0, "new"));
  EXPECT_EQ(ModeOf("new"), 0400u);
}

TEST_F(SpecialFileTest, WritingAFileReplacesNone) {
  ASSERT_EQ(mkfifo(Path("fifo").c_str(), 0600), 0);
  EXPECT_FALSE(WriteFileAtomic(Path("fifo"), {}));
  EXPECT_FALSE(ReplaceFile(Path("fifo"), {}));
  EXPECT_TRUE(fs::is_fifo(Path("fifo")));
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_.path()), {}), 1) << "no temporary file stays";
}

}  // namespace
}  // namespace millrace
