#include "millrace/mount/point/mount_point.h"

#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <filesystem>

#include "millrace/base/process/subprocess.h"
#include "millrace/base/text.h"

namespace millrace::mount {
bool IsDisconnectedError(int error) { return error == ENOTCONN || error == ECONNABORTED; }

Result<std::optional<MountEntry>> FindMount(const std::string& absolute_path) {
  std::optional<MountEntry> found;
  for (MountEntry& mount : MR_TRY(ReadMountTable())) {
    if (mount.point == absolute_path) found = std::move(mount);
  }
  return found;
}

Result<std::string> ResolveMountPoint(const std::string& path) {
  // realpath looks up the last component, and a mount whose daemon died cannot answer that. So this resolves the parent
  // and adds the name.
  std::string trimmed = path;
  while (trimmed.size() > 1 && trimmed.ends_with('/')) trimmed.pop_back();
  std::filesystem::path last = std::filesystem::path(trimmed).filename(),
                        parent = std::filesystem::path(trimmed).parent_path();
  char resolved[PATH_MAX];
  struct stat info;
  const bool answers = ::lstat(trimmed.c_str(), &info) == 0 || !IsDisconnectedError(errno);
  if (answers || last == "." || last == "..") {
    if (::realpath(trimmed.c_str(), resolved) == nullptr) {
      if (errno == ENOENT) return Fail(Code::kNotFound, "the mount point {} does not exist; make it with mkdir", path);
      return Fail(ErrnoError(errno, trimmed));
    }
    return std::string(resolved);
  }
  if (::realpath(parent.empty() ? "." : parent.c_str(), resolved) == nullptr) return Fail(ErrnoError(errno, trimmed));
  return (std::filesystem::path(resolved) / last).string();
}

Result<std::string> PrepareMountPoint(const std::string& given) {
  std::string path = MR_TRY(ResolveMountPoint(given));
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
  struct statfs asked;  // the kernel never answers statfs from its cache, as it may stat
  if (::statfs(path.c_str(), &asked) != 0 && IsDisconnectedError(errno)) {
    MR_TRY(Detach(path, /*lazy=*/true));  // its daemon was killed
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
  if (!std::filesystem::is_empty(path, error) && !error) {
    return Fail(Code::kNotEmpty, "the mount point {} is not empty; its files would be hidden: choose an empty folder",
                path);
  }
  return path;
}

Status Detach(const std::string& path, bool lazy) {
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

}  // namespace millrace::mount
