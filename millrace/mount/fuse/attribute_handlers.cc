#include "millrace/mount/fuse/handlers.h"

#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/xattr.h>

#include <algorithm>

#include "millrace/base/clock.h"
#include "millrace/mount/fuse/request.h"
#include "millrace/mount/fuse/resumable_session.h"

namespace millrace::mount {
namespace {

WallTime ToWallTime(const timespec& time) {
  return WallTime(std::chrono::duration_cast<WallTime::duration>(std::chrono::seconds(time.tv_sec) +
                                                                 std::chrono::nanoseconds(time.tv_nsec)));
}

/// Answers an xattr request: with the number of bytes if `room` is 0, else with the bytes.
void ReplyBytes(fuse_req_t request, std::string_view bytes, std::size_t room) {
  if (room == 0) return void(fuse_reply_xattr(request, bytes.size()));
  if (room < bytes.size()) return void(fuse_reply_err(request, ERANGE));
  fuse_reply_buf(request, bytes.data(), bytes.size());
}

/// Returns the change that a setattr request asks for, except the size.
vfs::AttributeChange ToChange(const struct stat& wanted, int which) {
  vfs::AttributeChange change;
  if (which & FUSE_SET_ATTR_MODE) change.permissions = wanted.st_mode & 07777;
  if (which & FUSE_SET_ATTR_UID) change.uid = wanted.st_uid;
  if (which & FUSE_SET_ATTR_GID) change.gid = wanted.st_gid;
  if (which & FUSE_SET_ATTR_MTIME) change.modified = ToWallTime(wanted.st_mtim);
  if (which & FUSE_SET_ATTR_ATIME) change.accessed = ToWallTime(wanted.st_atim);
  if (which & FUSE_SET_ATTR_MTIME_NOW) change.modified = SystemClock().Wall();
  if (which & FUSE_SET_ATTR_ATIME_NOW) change.accessed = SystemClock().Wall();
  return change;
}

}  // namespace

void HandleGetAttributes(fuse_req_t request, fuse_ino_t inode, fuse_file_info*) {
  RequestContext& context = RequestContext::Of(request);
  auto entry = [&] {
    Interruptible wait(request);
    return context.tree.GetAttributes(inode, wait.call());
  }();
  if (!entry) return ReplyError(request, "stat", inode, entry.error());
  struct stat info = ToStat(entry->attributes);
  fuse_reply_attr(request, &info, SecondsOf(entry->valid_for));
}

void HandleSetAttributes(fuse_req_t request, fuse_ino_t inode, struct stat* wanted, int which, fuse_file_info* info) {
  RequestContext& context = RequestContext::Of(request);
  vfs::AttributeChange change = ToChange(*wanted, which);
  if (which & FUSE_SET_ATTR_SIZE) change.size = static_cast<std::uint64_t>(wanted->st_size);
  FileHandle* const through = info != nullptr ? FindFile(request, info) : nullptr;
  auto entry = context.tree.SetAttributes(inode, change, through != nullptr ? through->file.get() : nullptr);
  if (!entry) return ReplyError(request, "setattr", inode, entry.error());
  struct stat now = ToStat(entry->attributes);
  fuse_reply_attr(request, &now, SecondsOf(entry->valid_for));
}

void HandleStatFs(fuse_req_t request, fuse_ino_t) {
  RequestContext& context = RequestContext::Of(request);
  // A bucket has no size. 1 EiB, so that programs which check for free space find enough.
  constexpr std::uint64_t kBlock = 4096, kBlocks = (1ULL << 60) / kBlock;
  struct statvfs info{};
  info.f_bsize = info.f_frsize = kBlock;
  info.f_blocks = info.f_bfree = info.f_bavail = kBlocks;
  auto usage = [&] {
    Interruptible wait(request);
    return context.tree.usage(wait.call());
  }();
  // Programs take an error for the mount's death.
  if (!usage) {
    context.options.log.Warning("how full the volume is cannot be told", {{"reason", usage.error()}});
  }
  if (usage && *usage) {
    info.f_blocks = (*usage)->limit / kBlock;
    info.f_bfree = info.f_bavail = ((*usage)->limit - std::min((*usage)->used, (*usage)->limit)) / kBlock;
  }
  info.f_files = info.f_ffree = info.f_favail = 1ULL << 40;
  info.f_namemax = 255;
  fuse_reply_statfs(request, &info);
}

void HandleGetXattr(fuse_req_t request, fuse_ino_t inode, const char* name, std::size_t room) {
  // ls asks for the ACL and the label of every name. After EOPNOTSUPP, ls knows that the file system has none, and does
  // not ask again. The kernel asks for capabilities and reads EOPNOTSUPP as "none". After ENOSYS the kernel never asks
  // again; this is the answer if no file can have attributes.
  RequestContext& context = RequestContext::Of(request);
  if (!context.options.xattrs) return void(fuse_reply_err(request, ENOSYS));
  if (!std::string_view(name).starts_with("user.")) return void(fuse_reply_err(request, EOPNOTSUPP));
  auto value = [&] {
    Interruptible wait(request);
    return context.tree.GetXattr(inode, name, wait.call());
  }();
  if (!value) return ReplyError(request, "getxattr", inode, value.error());
  if (!*value) return void(fuse_reply_err(request, ENODATA));
  ReplyBytes(request, **value, room);
}

void HandleListXattrs(fuse_req_t request, fuse_ino_t inode, std::size_t room) {
  auto names = [&] {
    Interruptible wait(request);
    return RequestContext::Of(request).tree.ListXattrs(inode, wait.call());
  }();
  if (!names) return ReplyError(request, "listxattr", inode, names.error());
  std::string joined;
  for (const std::string& name : *names) joined.append(name).push_back('\0');
  ReplyBytes(request, joined, room);
}

void HandleSetXattr(fuse_req_t request, fuse_ino_t inode, const char* name, const char* value, std::size_t size,
                    int flags) {
  const auto mode = flags & XATTR_CREATE    ? vfs::XattrMode::kCreate
                    : flags & XATTR_REPLACE ? vfs::XattrMode::kReplace
                                            : vfs::XattrMode::kAny;
  auto set = RequestContext::Of(request).tree.SetXattr(inode, name, {value, size}, mode);
  const bool repeated = RequestOrigin::Current().repeated;  // then the other process may have set it
  if (!set && repeated && set.error().code() == Code::kAlreadyExists) set = true;
  if (!set) return ReplyError(request, "setxattr", inode, set.error());
  fuse_reply_err(request, *set ? 0 : ENODATA);
}

void HandleRemoveXattr(fuse_req_t request, fuse_ino_t inode, const char* name) {
  auto removed = RequestContext::Of(request).tree.RemoveXattr(inode, name);
  if (!removed) return ReplyError(request, "removexattr", inode, removed.error());
  fuse_reply_err(request, *removed || RequestOrigin::Current().repeated ? 0 : ENODATA);
}

}  // namespace millrace::mount
