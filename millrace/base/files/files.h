// Local files: owned descriptors, whole reads and writes, atomic replacement, temporary folders.
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

/// Calls open(2) with O_CLOEXEC. Errors name the path.
Result<UniqueFd> OpenFile(const std::filesystem::path& path, int flags, mode_t mode = 0644);
/// Returns the whole content. Errors: kResourceExhausted if the file is longer than `max_bytes`.
Result<std::string> ReadFile(const std::filesystem::path& path, std::uint64_t max_bytes = 64 * kMiB);
/// Replaces the file by way of a temporary sibling (write, fsync, rename, fsync of the directory). After a crash the
/// file has either the old or the new content.
Status WriteFileAtomic(const std::filesystem::path& path, ByteSpan content, mode_t mode = 0644);
/// Replaces the file by way of the sibling PATH.new (write, rename). Readers see either the old or the new content.
/// There is no fsync: after a power failure the file may be empty. REQUIRES: one writer at a time.
Status ReplaceFile(const std::filesystem::path& path, ByteSpan content, mode_t mode = 0644);
/// Reads into.size() bytes at `offset`. `what` names the file in messages.
Status ReadExactly(int fd, MutableByteSpan into, std::uint64_t offset, std::string_view what);
/// Writes all bytes at `offset`. `what` names the file in messages.
Status WriteFully(int fd, ByteSpan bytes, std::uint64_t offset, std::string_view what);
/// Makes the directory's names durable (fsync).
Status SyncDirectory(const std::filesystem::path& directory);

/// Owns a new directory, mode 0700. The destructor removes it with its content.
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
