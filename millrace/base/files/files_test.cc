#include "millrace/base/files/files.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

namespace millrace {
namespace {

namespace fs = std::filesystem;

TEST(Files, AtomicWriteReplacesAndLeavesNothingElse) {
  TempDir dir = *TempDir::Create();
  fs::path file = dir.path() / "f";
  ASSERT_TRUE(WriteFileAtomic(file, AsBytes("old")));
  ASSERT_TRUE(WriteFileAtomic(file, AsBytes("new"), 0600));
  EXPECT_EQ(*ReadFile(file), "new");
  EXPECT_EQ(fs::status(file).permissions(), fs::perms::owner_read | fs::perms::owner_write);
  EXPECT_EQ(std::distance(fs::directory_iterator(dir.path()), {}), 1);
}

TEST(Files, AFailedWriteLeavesTheOldContentAndNoTemporary) {
  TempDir dir = *TempDir::Create();
  fs::create_directory(dir.path() / "target");  // a directory cannot be replaced by a file
  EXPECT_FALSE(WriteFileAtomic(dir.path() / "target", AsBytes("x")));
  EXPECT_EQ(std::distance(fs::directory_iterator(dir.path()), {}), 1);
}

TEST(Files, ErrorsNameThePath) {
  auto missing = ReadFile("/no/such/file");
  EXPECT_EQ(missing.error().code(), Code::kNotFound);
  EXPECT_NE(missing.error().message().find("/no/such/file"), std::string::npos);
  TempDir dir = *TempDir::Create();
  ASSERT_TRUE(WriteFileAtomic(dir.path() / "f", AsBytes("0123456789")));
  EXPECT_EQ(ReadFile(dir.path() / "f", 5).error().code(), Code::kResourceExhausted);
}

TEST(Files, PositionedReadsAndWrites) {
  TempDir dir = *TempDir::Create();
  UniqueFd fd = *OpenFile(dir.path() / "f", O_RDWR | O_CREAT);
  ASSERT_TRUE(WriteFully(fd.get(), AsBytes("hello"), 3, "f"));
  char buffer[5];
  ASSERT_TRUE(ReadExactly(fd.get(), AsWritableBytes(buffer), 3, "f"));
  EXPECT_EQ(std::string_view(buffer, 5), "hello");
  EXPECT_EQ(ReadExactly(fd.get(), AsWritableBytes(buffer), 5, "f").error().code(), Code::kCorrupt);
}

TEST(TempDir, IsRemovedWithItsContent) {
  fs::path path;
  {
    TempDir dir = *TempDir::Create();
    path = dir.path();
    fs::create_directories(path / "a/b");
    TempDir moved = std::move(dir);
    EXPECT_TRUE(fs::exists(path));
  }
  EXPECT_FALSE(fs::exists(path));
}

}  // namespace
}  // namespace millrace
