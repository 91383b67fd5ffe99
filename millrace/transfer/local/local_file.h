// A regular file that is read while others may write to it.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <string>

#include "millrace/base/files/files.h"
#include "millrace/base/result.h"

namespace millrace::transfer {

/// Open for reading, with its state at that moment. Any thread may read.
class LocalFile {
 public:
  /// kIsDirectory, and kInvalidArgument for pipes and the like.
  static Result<LocalFile> Open(const std::string& path);

  int fd() const { return fd_.get(); }
  std::uint64_t size() const { return static_cast<std::uint64_t>(state_.st_size); }
  timespec modified() const { return state_.st_mtim; }
  const std::string& path() const { return path_; }
  /// When it was opened.
  const struct stat& state() const { return state_; }
  /// Path, inode, size and time: another one means other bytes.
  std::string Version() const;
  /// kStale when the file is no longer what it was when it was opened.
  Status CheckUnchanged() const;

 private:
  LocalFile(UniqueFd fd, std::string path) : fd_(std::move(fd)), path_(std::move(path)) {}
  UniqueFd fd_;
  std::string path_;
  struct stat state_ = {};
};

}  // namespace millrace::transfer
