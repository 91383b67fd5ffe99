// A regular file to read. Detects whether another program has changed it meanwhile.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <string>

#include "millrace/base/files/files.h"
#include "millrace/base/result.h"

namespace millrace::transfer {

/// A file opened for reading, with its stat(2) at that moment. Immutable and thread-safe.
class LocalFile {
 public:
  /// Errors: kIsDirectory; kInvalidArgument for pipes, devices and sockets; those of OpenFile().
  static Result<LocalFile> Open(const std::string& path);

  int fd() const { return fd_.get(); }
  std::uint64_t size() const { return static_cast<std::uint64_t>(state_.st_size); }
  timespec modified() const { return state_.st_mtim; }
  const std::string& path() const { return path_; }
  /// Returns the file's state when it was opened.
  const struct stat& state() const { return state_; }
  /// Returns path, inode, size and time as text. If it differs, the bytes may differ.
  std::string Version() const;
  /// Errors: kStale if the file has changed since it was opened.
  Status CheckUnchanged() const;

 private:
  LocalFile(UniqueFd fd, std::string path) : fd_(std::move(fd)), path_(std::move(path)) {}
  UniqueFd fd_;
  std::string path_;
  struct stat state_ = {};
};

}  // namespace millrace::transfer
