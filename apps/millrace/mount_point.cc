#include "apps/millrace/mount_point.h"

#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <future>
#include <memory>
#include <thread>

#include "apps/millrace/mount_stats.h"
#include "millrace/base/process/subprocess.h"
#include "millrace/base/text.h"

namespace millrace::mount {
namespace {

namespace fs = std::filesystem;

bool IsDisconnected(int error) { return error == ENOTCONN || error == ECONNABORTED; }

}  // namespace

const unsigned long kDaemonStatusRequest = _IOR('M', 1, DaemonStatus);
const unsigned long kDaemonStatsRequest = _IOC(_IOC_READ, 'M', 2, kMaxStatsBytes);

Result<std::optional<MountEntry>> FindMount(const std::string& absolute_path) {
  std::optional<MountEntry> found;
  for (MountEntry& mount : MR_TRY(ReadMountTable())) {
    if (mount.point == absolute_path) found = std::move(mount);
  }
  return found;
}

Result<std::string> ResolveMountPoint(const std::string& path) {
  // realpath asks for the last component, which a dead mount cannot answer: resolve its parent and add the name.
  std::string trimmed = path;
  while (trimmed.size() > 1 && trimmed.ends_with('/')) trimmed.pop_back();
  fs::path last = fs::path(trimmed).filename(), parent = fs::path(trimmed).parent_path();
  char resolved[PATH_MAX];
  struct stat info;
  const bool answers = ::lstat(trimmed.c_str(), &info) == 0 || !IsDisconnected(errno);
  if (answers || last == "." || last == "..") {
    if (::realpath(trimmed.c_str(), resolved) == nullptr) {
      if (errno == ENOENT) return Fail(Code::kNotFound, "the mount point {} does not exist; make it with mkdir", path);
      return Fail(ErrnoError(errno, trimmed));
    }
    return std::string(resolved);
  }
  if (::realpath(parent.empty() ? "." : parent.c_str(), resolved) == nullptr) return Fail(ErrnoError(errno, trimmed));
  return (fs::path(resolved) / last).string();
}

Status PrepareMountPoint(const std::string& path) {
  if (::access("/dev/fuse", R_OK | W_OK) != 0) {
    if (errno == ENOENT) {
      return Fail(
          Code::kUnsupported,
          "there is no /dev/fuse here: load the kernel's fuse module, or run the container with --device /dev/fuse "
          "--cap-add SYS_ADMIN");
    }
    return Fail(ErrnoError(errno, "cannot use /dev/fuse"));
  }
  struct stat info;
  struct statfs asked;  // unlike stat, never answered from the kernel's memory
  if (::statfs(path.c_str(), &asked) != 0 && IsDisconnected(errno)) {
    MR_TRY(Unmount(path, /*lazy=*/true));  // its daemon was killed
  }
  if (auto mounted = MR_TRY(FindMount(path)); mounted && mounted->type.starts_with("fuse")) {
    return Fail(Code::kBusy, "{} is mounted on {} already; `millrace umount {}` ends that", mounted->source, path,
                path);
  }
  if (::stat(path.c_str(), &info) != 0) {
    return Fail(ErrnoError(errno, fmt::format("cannot use {} as mount point", path)));
  }
  if (!S_ISDIR(info.st_mode)) return Fail(Code::kNotDirectory, "the mount point {} is not a directory", path);
  std::error_code error;
  if (!fs::is_empty(path, error) && !error) {
    return Fail(Code::kNotEmpty, "the mount point {} is not empty; its files would be hidden: choose an empty folder",
                path);
  }
  return {};
}

Status Unmount(const std::string& path, bool lazy) {
  if (::umount2(path.c_str(), UMOUNT_NOFOLLOW | (lazy ? MNT_DETACH : 0)) == 0) return {};
  if (errno != EPERM) {
    if (errno == EBUSY) return Fail(Code::kBusy, "{} is in use", path);
    return Fail(ErrnoError(errno, fmt::format("cannot unmount {}", path)));
  }
  std::vector<std::string> argv = {"fusermount3", lazy ? "-uz" : "-u", "--", path};
  auto run = MR_TRY(Subprocess::Run({.argv = std::move(argv)}));
  if (!run.state.ok()) return Fail(Code::kBusy, "fusermount3 could not unmount {}: {}", path, run.state.ToString());
  return {};
}

Status SetReadAhead(const std::string& path, std::uint64_t bytes) {
  auto mounted = MR_TRY(FindMount(path));
  if (!mounted) return Fail(Code::kNotFound, "{} is not mounted", path);
  const std::string file = fmt::format("/sys/class/bdi/{}/read_ahead_kb", mounted->device);
  UniqueFd fd = MR_TRY(OpenFile(file, O_WRONLY));
  return WriteFully(fd.get(), AsBytes(fmt::format("{}", bytes / kKiB)), 0, file);
}

namespace {

/// Asks the daemon of a mount by an ioctl on its root; gives what the ioctl returned.
Result<int> AskDaemon(const std::string& path, unsigned long request, void* answer) {
  UniqueFd root(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  const int answered = root ? ::ioctl(root.get(), request, answer) : -1;
  if (answered >= 0) return answered;
  if (IsDisconnected(errno)) return Fail(Code::kUnavailable, "the daemon of {} is gone", path);
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

Result<Json> QueryStats(const std::string& path) {
  std::string text(kMaxStatsBytes, '\0');
  const int length = MR_TRY(AskDaemon(path, kDaemonStatsRequest, text.data()));
  text.resize(std::min(static_cast<std::size_t>(length), text.size()));
  return ParseJson(text, "the daemon's answer");
}

Status CheckMount(const std::string& given, Duration timeout) {
  // In a thread, because a daemon that hangs keeps whoever asks it in the kernel.
  auto answer = std::make_shared<std::promise<Status>>();
  auto answered = answer->get_future();
  std::thread([answer, given] {
    auto check = [&]() -> Status {
      const std::string path = MR_TRY(ResolveMountPoint(given));
      auto mounted = MR_TRY(FindMount(path));
      if (!mounted) return Fail(Code::kNotFound, "nothing is mounted on {}", path);
      MR_TRY(QueryDaemon(path));
      std::error_code error;
      if (fs::directory_iterator listing(path, error); error) {
        return Fail(Code::kUnavailable, "{} cannot be listed: {}", path, error.message());
      }
      return {};
    };
    answer->set_value(check());
  }).detach();
  if (answered.wait_for(timeout) != std::future_status::ready) {
    return Fail(Code::kDeadlineExceeded, "the mount on {} has not answered for {}", given, FormatDuration(timeout));
  }
  return answered.get();
}

}  // namespace millrace::mount
