#include "millrace/mount/point/control.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

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

UniqueFd OpenAnsweringProcess(pid_t pid, const std::function<pid_t()>& ask_again) {
  UniqueFd process(pid > 0 ? static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)) : -1);
  if (process && ask_again() != pid) process.Reset();
  return process;
}

Result<DaemonAnswer> IdentifyDaemon(const std::string& path) {
  DaemonAnswer answer{.status = MR_TRY(QueryDaemon(path))};
  answer.process = OpenAnsweringProcess(answer.status.pid, [&]() -> pid_t {
    answer.stats = QueryStats(path).value_or(Json::object());
    if (answer.stats.value("pid_namespace", PidNamespace()) != PidNamespace()) return -1;
    return answer.stats.value("pid", -1);
  });
  return answer;
}

}  // namespace millrace::mount
