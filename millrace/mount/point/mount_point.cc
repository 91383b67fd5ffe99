#include "millrace/mount/point/mount_point.h"

#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <set>

#include "millrace/base/files/files.h"
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

std::vector<MountView> FindViews(const std::string& device) {
  std::vector<MountView> views;
  auto add = [&](pid_t process, const std::vector<MountEntry>& mounts) {
    for (const MountEntry& mount : mounts) {
      if (mount.device != device) continue;
      views.push_back({.process = process, .point = mount.point});
      if (process == 0) continue;
      views.back().program = Trim(ReadFile(fmt::format("/proc/{}/comm", process)).value_or(""));
      return;
    }
  };
  struct stat space;
  std::set<ino_t> seen;
  if (::stat("/proc/self/ns/mnt", &space) == 0) seen.insert(space.st_ino);
  add(0, ReadMountTable().value_or(std::vector<MountEntry>{}));
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", error)) {
    const std::string name = entry.path().filename();
    pid_t process = 0;
    if (std::from_chars(name.data(), name.data() + name.size(), process).ec != std::errc()) continue;
    if (::stat((entry.path() / "ns/mnt").c_str(), &space) != 0 || seen.contains(space.st_ino)) continue;
    const auto mounts = ReadMountTableOf(process);
    if (!mounts) continue;  // it has ended; others may be in its namespace
    seen.insert(space.st_ino);
    add(process, *mounts);
  }
  return views;
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
      if (errno == ENOENT) {
        return Fail(Code::kNotFound, "there is no mount point {}; `findmnt -t fuse.millrace` lists what is mounted",
                    path);
      }
      return Fail(ErrnoError(errno, trimmed));
    }
    return std::string(resolved);
  }
  if (::realpath(parent.empty() ? "." : parent.c_str(), resolved) == nullptr) return Fail(ErrnoError(errno, trimmed));
  return (std::filesystem::path(resolved) / last).string();
}

Result<std::string> PrepareMountPoint(const std::string& given) {
  auto resolved = ResolveMountPoint(given);
  if (!resolved && resolved.error().code() == Code::kNotFound) {
    return Fail(Code::kNotFound, "the mount point {} does not exist; make it with mkdir", given);
  }
  std::string path = MR_TRY(std::move(resolved));
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
    if (errno == EBUSY) {
      return Fail(Code::kBusy, "{} is in use; close its files (`fuser -m` shows by whom), or unmount with --lazy",
                  path);
    }
    return Fail(ErrnoError(errno, fmt::format("cannot unmount {}", path)));
  }
  std::vector<std::string> argv = {"fusermount3", lazy ? "-uz" : "-u", "--", path};
  auto run = MR_TRY(Subprocess::Run({.argv = std::move(argv)}));
  if (!run.state.ok()) {
    return Fail(
        Code::kBusy,
        "fusermount3 could not unmount {}: {}; close its files (`fuser -m` shows by whom), or unmount with --lazy",
        path, run.state.ToString());
  }
  return {};
}

Status SetReadAhead(const std::string& path, std::uint64_t bytes) {
  auto mounted = MR_TRY(FindMount(path));
  if (!mounted) return Fail(Code::kNotFound, "{} is not mounted any more; mount it again", path);
  const std::string file = fmt::format("/sys/class/bdi/{}/read_ahead_kb", mounted->device);
  UniqueFd fd = MR_TRY(OpenFile(file, O_WRONLY));
  return WriteFully(fd.get(), AsBytes(fmt::format("{}", bytes / kKiB)), 0, file);
}

}  // namespace millrace::mount
