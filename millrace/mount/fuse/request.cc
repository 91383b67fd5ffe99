#include "millrace/mount/fuse/request.h"

#include "millrace/mount/point/mount_stats.h"

#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <charconv>

#include "millrace/base/files/files.h"

namespace millrace::mount {
namespace {

/// Returns the value of a line "Name:\tvalue" of /proc/PID/status, or nothing if there is no such line.
std::string ProcessField(pid_t pid, std::string_view name) {
  auto text = ReadFile(fmt::format("/proc/{}/status", pid), 64 * kKiB);
  if (!text) return {};
  auto at = text->find(fmt::format("\n{}:\t", name));
  if (at == std::string::npos) return {};
  at += name.size() + 3;
  return text->substr(at, text->find('\n', at) - at);
}

/// Fatal signals reach every thread of a process as a pending SIGKILL.
bool IsBeingKilled(pid_t pid) {
  const std::string pending = ProcessField(pid, "SigPnd");
  std::uint64_t signals = 0;
  std::from_chars(pending.data(), pending.data() + pending.size(), signals, 16);
  return (signals & (1ULL << (SIGKILL - 1))) != 0;
}

bool IsExpectedAnswer(Code code) {
  switch (code) {
    case Code::kNotFound:
    case Code::kAlreadyExists:
    case Code::kNotDirectory:
    case Code::kIsDirectory:
    case Code::kNotEmpty:
    case Code::kNameTooLong:
    case Code::kReadOnly:
    case Code::kCancelled:
      return true;
    default:
      return false;
  }
}

}  // namespace

Interruptible::Interruptible(fuse_req_t request)
    : request_(request), at_end_(RequestContext::Of(request).ended.get_token(), [this] { stop_.request_stop(); }) {
  fuse_req_interrupt_func(request_, &OnInterrupt, this);
}

Interruptible::~Interruptible() { fuse_req_interrupt_func(request_, nullptr, nullptr); }

void Interruptible::OnInterrupt(fuse_req_t request, void* self) {
  if (IsBeingKilled(fuse_req_ctx(request)->pid)) static_cast<Interruptible*>(self)->stop_.request_stop();
}

pid_t ProcessOf(fuse_req_t request) {
  const pid_t caller = fuse_req_ctx(request)->pid;
  // Most often the caller is the first thread, whose number is the process's. pidfd_open succeeds for first threads
  // only.
  if (UniqueFd leads(static_cast<int>(::syscall(SYS_pidfd_open, caller, 0))); leads) return caller;
  const std::string leader = ProcessField(caller, "Tgid");
  pid_t pid = 0;
  std::from_chars(leader.data(), leader.data() + leader.size(), pid);
  return pid;
}

timespec ToTimespec(WallTime time) {
  const auto since = time.time_since_epoch();
  const auto seconds = std::chrono::floor<std::chrono::seconds>(since);
  return {.tv_sec = seconds.count(),
          .tv_nsec = std::chrono::duration_cast<std::chrono::nanoseconds>(since - seconds).count()};
}

mode_t TypeOf(vfs::NodeKind kind) {
  switch (kind) {
    case vfs::NodeKind::kDirectory:
      return S_IFDIR;
    case vfs::NodeKind::kSymlink:
      return S_IFLNK;
    case vfs::NodeKind::kSpecial:
      return 0;  // DT_UNKNOWN: a program that needs the type calls stat
    case vfs::NodeKind::kFile:
      break;
  }
  return S_IFREG;
}

struct stat ToStat(const vfs::NodeAttributes& attributes) {
  struct stat info{};
  info.st_ino = attributes.inode;
  info.st_mode = TypeOf(attributes.kind) | attributes.special_type | attributes.permissions;
  info.st_rdev = attributes.device;
  info.st_nlink = attributes.linked ? 1 : 0;
  info.st_uid = attributes.uid;
  info.st_gid = attributes.gid;
  info.st_size = static_cast<off_t>(attributes.size);
  info.st_blksize = static_cast<blksize_t>(kMiB);  // programs copy in blocks of this size
  info.st_blocks = static_cast<blkcnt_t>((attributes.size + 511) / 512);
  info.st_mtim = ToTimespec(attributes.modified);
  info.st_atim = ToTimespec(attributes.accessed);
  info.st_ctim = ToTimespec(attributes.changed);
  return info;
}

fuse_entry_param ToEntry(const vfs::CacheableAttributes& entry) {
  fuse_entry_param param{};
  param.ino = entry.attributes.inode;
  param.attr = ToStat(entry.attributes);
  param.attr_timeout = param.entry_timeout = SecondsOf(entry.valid_for);
  return param;
}

vfs::Ownership OwnershipOf(fuse_req_t request, mode_t mode) {
  const fuse_ctx* caller = fuse_req_ctx(request);
  return {.permissions = mode & 07777, .uid = caller->uid, .gid = caller->gid};
}

FileHandle* FindFile(fuse_req_t request, const fuse_file_info* info) {
  return RequestContext::Of(request).files.FindFile(info->fh);
}

void ReplyError(fuse_req_t request, const char* operation, fuse_ino_t inode, const Error& error) {
  const FuseOptions& options = RequestContext::Of(request).options;
  options.stats->CountFailure(operation);
  const LogLevel level = IsExpectedAnswer(error.code()) ? LogLevel::kDebug : LogLevel::kWarning;
  options.log.Log(level, fmt::format("{} failed", operation), {{"inode", inode}, {"reason", error}});
  const bool refused = options.strict && error.code() == Code::kPermissionDenied;
  fuse_reply_err(request, refused ? EPERM : ToErrno(error.code()));
}

void ReplyStatus(fuse_req_t request, const char* operation, fuse_ino_t inode, const Status& status) {
  status ? void(fuse_reply_err(request, 0)) : ReplyError(request, operation, inode, status.error());
}

void ReplyEntry(fuse_req_t request, const vfs::CacheableAttributes& entry) {
  vfs::Tree& tree = RequestContext::Of(request).tree;
  const fuse_entry_param param = ToEntry(entry);
  if (fuse_reply_entry(request, &param) != 0) tree.Forget(param.ino, 1);
}

}  // namespace millrace::mount
