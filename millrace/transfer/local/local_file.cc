#include "millrace/transfer/local/local_file.h"

#include <fcntl.h>

#include <cerrno>

#include "millrace/base/files/special_file.h"

namespace millrace::transfer {

Result<LocalFile> LocalFile::Open(const std::string& path) {
  LocalFile file(MR_TRY(OpenFile(path, O_RDONLY | O_NONBLOCK)), path);
  if (fstat(file.fd(), &file.state_) != 0) return Fail(ErrnoError(errno, "reading the state of " + path));
  if (S_ISDIR(file.state_.st_mode)) return Fail(Code::kIsDirectory, "{} is a folder", path);
  if (const std::string_view type = SpecialTypeOf(file.state_.st_mode); !type.empty()) {
    return Fail(Code::kInvalidArgument, "{} is {}, not a file; use `pipe`", path, type);
  }
  return file;
}

std::string LocalFile::Version() const {
  return fmt::format("{}\n{} {} {}.{:09}", path_, state_.st_ino, state_.st_size, state_.st_mtim.tv_sec,
                     state_.st_mtim.tv_nsec);
}

Status LocalFile::CheckUnchanged() const {
  struct stat now;
  if (fstat(fd(), &now) != 0) return Fail(ErrnoError(errno, "reading the state of " + path_));
  bool same = now.st_size == state_.st_size && now.st_mtim.tv_sec == state_.st_mtim.tv_sec &&
              now.st_mtim.tv_nsec == state_.st_mtim.tv_nsec;
  if (!same) return Fail(Code::kStale, "{} changed while it was read", path_);
  return {};
}

}  // namespace millrace::transfer
