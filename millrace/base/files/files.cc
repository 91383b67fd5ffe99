#include "millrace/base/files/files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

#include "millrace/base/files/special_file.h"
#include "millrace/base/hash/random.h"

namespace millrace {
namespace fs = std::filesystem;

UniqueFd& UniqueFd::operator=(UniqueFd&& other) noexcept {
  if (this != &other) {
    Reset();
    fd_ = std::exchange(other.fd_, -1);
  }
  return *this;
}

void UniqueFd::Reset() {
  if (fd_ >= 0) ::close(std::exchange(fd_, -1));
}

Result<UniqueFd> OpenFile(const fs::path& path, int flags, mode_t mode) {
  int fd;
  do fd = ::open(path.c_str(), flags | O_CLOEXEC, mode);
  while (fd < 0 && errno == EINTR);
  if (fd < 0) return Fail(ErrnoError(errno, fmt::format("cannot open {}", path.string())));
  return UniqueFd(fd);
}

Result<std::string> ReadFile(const fs::path& path, std::uint64_t max_bytes) {
  UniqueFd fd = MR_TRY(OpenFile(path, O_RDONLY));
  std::string content;
  char chunk[64 * kKiB];
  for (;;) {
    ssize_t n = ::read(fd.get(), chunk, sizeof chunk);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return Fail(ErrnoError(errno, fmt::format("cannot read {}", path.string())));
    if (n == 0) return content;
    if (content.size() + static_cast<std::size_t>(n) > max_bytes)
      return Fail(Code::kResourceExhausted, "{} is larger than {} bytes", path.string(), max_bytes);
    content.append(chunk, static_cast<std::size_t>(n));
  }
}

Status ReadExactly(int fd, MutableByteSpan into, std::uint64_t offset, std::string_view what) {
  for (std::size_t done = 0; done < into.size();) {
    ssize_t n = ::pread(fd, into.data() + done, into.size() - done, static_cast<off_t>(offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return Fail(ErrnoError(errno, fmt::format("cannot read {}", what)));
    if (n == 0) return Fail(Code::kCorrupt, "{} ends {} bytes early", what, into.size() - done);
    done += static_cast<std::size_t>(n);
  }
  return {};
}

Status WriteFully(int fd, ByteSpan bytes, std::uint64_t offset, std::string_view what) {
  for (std::size_t done = 0; done < bytes.size();) {
    ssize_t n = ::pwrite(fd, bytes.data() + done, bytes.size() - done, static_cast<off_t>(offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return Fail(ErrnoError(errno, fmt::format("cannot write {}", what)));
    done += static_cast<std::size_t>(n);
  }
  return {};
}

Status SyncDirectory(const fs::path& directory) {
  UniqueFd fd = MR_TRY(OpenFile(directory.empty() ? fs::path(".") : directory, O_RDONLY | O_DIRECTORY));
  if (::fsync(fd.get()) != 0) return Fail(ErrnoError(errno, fmt::format("cannot sync {}", directory.string())));
  return {};
}

Status WriteFileAtomic(const fs::path& path, ByteSpan content, mode_t mode) {
  MR_TRY(FindReplaced(AT_FDCWD, path, path.string()));
  fs::path temporary = path;
  temporary += fmt::format(".{:016x}.tmp", SystemEntropy());
  auto write = [&]() -> Status {
    UniqueFd fd = MR_TRY(OpenFile(temporary, O_WRONLY | O_CREAT | O_EXCL, mode));
    MR_TRY(WriteFully(fd.get(), content, 0, temporary.string()));
    if (::fsync(fd.get()) != 0) return Fail(ErrnoError(errno, fmt::format("cannot sync {}", temporary.string())));
    if (::rename(temporary.c_str(), path.c_str()) != 0)
      return Fail(ErrnoError(errno, fmt::format("cannot replace {}", path.string())));
    return SyncDirectory(path.parent_path());
  };
  Status status = write();
  if (!status) ::unlink(temporary.c_str());
  return status;
}

Status ReplaceFile(const fs::path& path, ByteSpan content, mode_t mode) {
  MR_TRY(FindReplaced(AT_FDCWD, path, path.string()));
  fs::path temporary = path;
  temporary += ".new";
  UniqueFd fd = MR_TRY(OpenFile(temporary, O_WRONLY | O_CREAT | O_TRUNC, mode));
  MR_TRY(WriteFully(fd.get(), content, 0, temporary.string()));
  if (::rename(temporary.c_str(), path.c_str()) != 0)
    return Fail(ErrnoError(errno, fmt::format("cannot replace {}", path.string())));
  return {};
}

Result<TempDir> TempDir::Create(const fs::path& parent) {
  const char* tmp = std::getenv("TMPDIR");
  std::string name = ((parent.empty() ? fs::path(tmp && *tmp ? tmp : "/tmp") : parent) / "millrace-XXXXXX").string();
  if (::mkdtemp(name.data()) == nullptr)
    return Fail(ErrnoError(errno, fmt::format("cannot create a temporary folder like {}", name)));
  return TempDir(fs::path(name));
}

TempDir& TempDir::operator=(TempDir&& other) noexcept {
  std::swap(path_, other.path_);
  return *this;
}

TempDir::~TempDir() {
  std::error_code ignored;
  if (!path_.empty()) fs::remove_all(path_, ignored);
}

}  // namespace millrace
