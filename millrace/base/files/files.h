// Local files and descriptors.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>

#include "millrace/base/bytes.h"
#include "millrace/base/result.h"

namespace millrace {

/// Owns a file descriptor.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept;
  ~UniqueFd() { Reset(); }
  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  int Release() { return std::exchange(fd_, -1); }
  void Reset();

 private:
  int fd_ = -1;
};

/// open(2) with O_CLOEXEC; errors name the path.
Result<UniqueFd> OpenFile(const std::filesystem::path& path, int flags, mode_t mode = 0644);
/// Fails with kResourceExhausted beyond `max_bytes`.
Result<std::string> ReadFile(const std::filesystem::path& path, std::uint64_t max_bytes = 64 * kMiB);
/// Temporary sibling, fsync, rename, fsync of the directory: afterwards either the old or the new content is there.
Status WriteFileAtomic(const std::filesystem::path& path, ByteSpan content, mode_t mode = 0644);
Status ReadExactly(int fd, MutableByteSpan into, std::uint64_t offset, std::string_view what);
Status WriteFully(int fd, ByteSpan bytes, std::uint64_t offset, std::string_view what);
Status SyncDirectory(const std::filesystem::path& directory);

/// A fresh directory, mode 0700, removed with its content on destruction.
class TempDir {
 public:
  static Result<TempDir> Create(const std::filesystem::path& parent = {});
  TempDir(TempDir&& other) noexcept : path_(std::exchange(other.path_, {})) {}
  TempDir& operator=(TempDir&& other) noexcept;
  ~TempDir();
  const std::filesystem::path& path() const { return path_; }

 private:
  explicit TempDir(std::filesystem::path path) : path_(std::move(path)) {}
  std::filesystem::path path_;
};

}  // namespace millrace
