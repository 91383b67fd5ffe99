#include "millrace/mount/point/control.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>

#include "millrace/base/files/files.h"
#include "millrace/mount/point/mount_point.h"

namespace millrace::mount {

const unsigned long kDaemonStatusRequest = _IOR('M', 1, DaemonStatus);
const unsigned long kDaemonStatsRequest = _IOC(_IOC_READ, 'M', 2, kMaxStatsBytes);

namespace {

/// Asks the daemon of a mount by an ioctl on its root. Returns the ioctl's result.
Result<int> AskDaemon(const std::string& path, unsigned long request, void* answer) {
  UniqueFd root(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  const int answered = root ? ::ioctl(root.get(), request, answer) : -1;
  if (answered >= 0) return answered;
  if (IsDisconnectedError(errno)) return Fail(Code::kUnavailable, "the daemon of {} is gone", path);
  if (errno == ENOTTY || errno == ENOSYS || errno == EINVAL) {
    return Fail(Code::kUnsupported, "{} is not a millrace mount", path);
  }
  return Fail(ErrnoError(errno, path));
}

}  // namespace

Result<DaemonStatus> QueryDaemon(const std::string& path) {
  DaemonStatus status;
  MR_TRY(AskDaemon(path, kDaemonStatusRequest, &status));
  if (status.magic != kDaemonStatusMagic) return Fail(Code::kUnsupported, "{} is not a millrace mount", path);
  return status;
}

std::uint64_t PidNamespace() {
  struct stat space;
  return ::stat("/proc/self/ns/pid", &space) == 0 ? space.st_ino : 0;
}

Result<Json> QueryStats(const std::string& path) {
  std::string text(kMaxStatsBytes, '\0');
  const int length = MR_TRY(AskDaemon(path, kDaemonStatsRequest, text.data()));
  text.resize(std::min(static_cast<std::size_t>(length), text.size()));
  return ParseJson(text, "the daemon's answer");
}

}  // namespace millrace::mount
