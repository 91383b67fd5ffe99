#include "millrace/base/files/special_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

namespace millrace {
namespace {

constexpr mode_t kPermissions = 0777;

/// Returns whether the name is a symbolic link into /proc, where the descriptors of processes are.
bool IsLinkToDescriptor(int folder, const std::string& name) {
  char target[64];
  const ssize_t length = readlinkat(folder, name.c_str(), target, sizeof target);
  return length > 0 && std::string_view(target, static_cast<std::size_t>(length)).starts_with("/proc/");
}

}  // namespace

std::string_view SpecialTypeOf(mode_t mode) {
  if (S_ISFIFO(mode)) return "a FIFO";
  if (S_ISSOCK(mode)) return "a socket";
  if (S_ISCHR(mode)) return "a character device";
  if (S_ISBLK(mode)) return "a block device";
  return {};
}

std::string_view SpecialTypeAt(int folder, const std::string& name) {
  if (IsLinkToDescriptor(folder, name)) return "an open descriptor";
  struct stat status;
  return fstatat(folder, name.c_str(), &status, 0) == 0 ? SpecialTypeOf(status.st_mode) : std::string_view();
}

Result<std::optional<struct stat>> FindReplaced(int folder, const std::string& name, std::string_view what) {
  if (const std::string_view type = SpecialTypeAt(folder, name); !type.empty()) {
    return Fail(Code::kInvalidArgument,
                "{} is {}, which a file would replace; redirect standard output there, or name a file", what, type);
  }
  struct stat status;
  if (fstatat(folder, name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(status.st_mode)) return std::nullopt;
  return status;
}

Status KeepAccess(int fd, const struct stat& replaced, mode_t also, std::string_view what) {
  struct stat now;
  if (fstat(fd, &now) != 0) return Fail(ErrnoError(errno, fmt::format("reading the state of {}", what)));
  mode_t mode = replaced.st_mode & kPermissions;
  if (now.st_gid != replaced.st_gid && fchown(fd, static_cast<uid_t>(-1), replaced.st_gid) != 0)
    mode &= ~mode_t{S_IRWXG};
  mode |= also;
  if (mode == (now.st_mode & kPermissions) || fchmod(fd, mode) == 0) return {};
  return Fail(ErrnoError(errno, fmt::format("setting the permissions of {}", what)));
}

}  // namespace millrace
