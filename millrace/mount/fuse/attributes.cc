#include "millrace/mount/fuse/attributes.h"

#include <sys/stat.h>
#include <sys/xattr.h>

#include "millrace/base/clock.h"
#include "millrace/mount/fuse/resumable_session.h"

namespace millrace::mount {
namespace {

WallTime ToWallTime(const timespec& time) {
  return WallTime(std::chrono::duration_cast<WallTime::duration>(std::chrono::seconds(time.tv_sec) +
                                                                 std::chrono::nanoseconds(time.tv_nsec)));
}

void ReplyError(fuse_req_t request, const char* operation, fuse_ino_t inode, const Error& error) {
  fuse_reply_err(request, LogFailure(RequestContext::Of(request).options, operation, inode, error));
}

void ReplyEntry(fuse_req_t request, const vfs::CacheableAttributes& entry) {
  fuse_entry_param param = ToEntry(entry);
  if (fuse_reply_entry(request, &param) != 0) RequestContext::Of(request).tree.Forget(param.ino, 1);
}

/// Answers an xattr request: with the number of bytes if `room` is 0, else with the bytes.
void ReplyBytes(fuse_req_t request, std::string_view bytes, std::size_t room) {
  if (room == 0) return void(fuse_reply_xattr(request, bytes.size()));
  if (room < bytes.size()) return void(fuse_reply_err(request, ERANGE));
  fuse_reply_buf(request, bytes.data(), bytes.size());
}

}  // namespace

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

std::optional<vfs::CacheableAttributes> FindMade(fuse_req_t request, fuse_ino_t parent, const char* name,
                                                 const Result<vfs::CacheableAttributes>& made, vfs::NodeKind kind) {
  if (made || made.error().code() != Code::kAlreadyExists || !RequestOrigin::Current().repeated) return std::nullopt;
  vfs::Tree& tree = RequestContext::Of(request).tree;
  auto there = tree.Lookup(parent, name);
  if (!there || !*there) return std::nullopt;
  if ((*there)->attributes.kind == kind) return *std::move(there);
  tree.Forget((*there)->attributes.inode, 1);
  return std::nullopt;
}

vfs::Ownership OwnershipOf(fuse_req_t request, mode_t mode) {
  const fuse_ctx* caller = fuse_req_ctx(request);
  return {.permissions = mode & 07777, .uid = caller->uid, .gid = caller->gid};
}

void HandleReadLink(fuse_req_t request, fuse_ino_t inode) {
  auto target = [&] {
    Interruptible wait(request);
    return RequestContext::Of(request).tree.ReadLink(inode, wait.call());
  }();
  if (!target) return ReplyError(request, "readlink", inode, target.error());
  fuse_reply_readlink(request, target->c_str());
}

void HandleSymlink(fuse_req_t request, const char* target, fuse_ino_t parent, const char* name) {
  auto made = RequestContext::Of(request).tree.MakeSymlink(parent, name, target, OwnershipOf(request, 0777));
  if (auto before = FindMade(request, parent, name, made, vfs::NodeKind::kSymlink)) made = *before;
  made ? ReplyEntry(request, *made) : ReplyError(request, "symlink", parent, made.error());
}

void HandleMakeNode(fuse_req_t request, fuse_ino_t parent, const char* name, mode_t mode, dev_t device) {
  if (!S_ISREG(mode)) {
    auto made =
        RequestContext::Of(request).tree.MakeSpecial(parent, name, mode & S_IFMT, device, OwnershipOf(request, mode));
    if (auto before = FindMade(request, parent, name, made, vfs::NodeKind::kSpecial)) made = *before;
    return made ? ReplyEntry(request, *made) : ReplyError(request, "mknod", parent, made.error());
  }
  auto created = RequestContext::Of(request).tree.Create(parent, name, true, OwnershipOf(request, mode));
  if (!created) {
    const auto before = FindMade(request, parent, name, Fail(created.error()), vfs::NodeKind::kFile);
    if (before) return ReplyEntry(request, *before);
  }
  if (!created) return ReplyError(request, "mknod", parent, created.error());
  Status closed = created->file->Close();
  if (closed) return ReplyEntry(request, created->entry);
  RequestContext::Of(request).tree.Forget(created->entry.attributes.inode, 1);
  ReplyError(request, "mknod", parent, closed.error());
}

void HandleLink(fuse_req_t request, fuse_ino_t, fuse_ino_t, const char*) {
  fuse_reply_err(request, EPERM);  // link(2): the file system does not support hard links
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
