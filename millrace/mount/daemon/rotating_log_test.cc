#include "millrace/mount/daemon/rotating_log.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "millrace/base/files/files.h"

namespace millrace::mount {
namespace {

/// Standard output and error are a file until the end of a test.
class RotatingLogTest : public testing::Test {
 protected:
  void SetUp() override {
    out_ = UniqueFd(::dup(STDOUT_FILENO));
    err_ = UniqueFd(::dup(STDERR_FILENO));
    Open();
  }
  void TearDown() override {
    ::dup2(out_.get(), STDOUT_FILENO);
    ::dup2(err_.get(), STDERR_FILENO);
  }
  void Open() {
    const UniqueFd file = *OpenFile(path(), O_WRONLY | O_CREAT | O_APPEND);
    ::dup2(file.get(), STDOUT_FILENO);
    ::dup2(file.get(), STDERR_FILENO);
  }
  std::filesystem::path path() const { return dir_.path() / "log"; }
  std::filesystem::path before() const { return dir_.path() / "log.1"; }

  TempDir dir_ = *TempDir::Create();
  UniqueFd out_, err_;
};

TEST_F(RotatingLogTest, KeepsTheNewestLinesWithinItsLimit) {
  constexpr std::uint64_t kLimit = 1000;
  const auto log = MakeRotatingLog(path(), kLimit);
  const std::string line(99, 'x');
  for (int i = 0; i < 500; ++i) log->Write(line);
  log->Write("the last line");
  EXPECT_TRUE(ReadFile(path())->ends_with("the last line\n"));
  EXPECT_LE(std::filesystem::file_size(path()), kLimit + 100);
  EXPECT_LE(std::filesystem::file_size(before()), kLimit + 100);
  EXPECT_GT(std::filesystem::file_size(before()), kLimit);
  EXPECT_FALSE(std::filesystem::exists(dir_.path() / "log.2"));
}

TEST_F(RotatingLogTest, LeavesAFileAloneThatAnotherProgramMoved) {
  const auto log = MakeRotatingLog(path(), 10);
  std::filesystem::rename(path(), dir_.path() / "moved");
  for (int i = 0; i < 5; ++i) log->Write("a line of logrotate");
  EXPECT_FALSE(std::filesystem::exists(path()));
  EXPECT_FALSE(std::filesystem::exists(before()));
  EXPECT_EQ(ReadFile(dir_.path() / "moved")->size(), 100);
}

}  // namespace
}  // namespace millrace::mount
