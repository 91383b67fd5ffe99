#include "millrace/mount/fuse/handlers.h"

#include <linux/fs.h>
#include <sys/stat.h>

#include "millrace/mount/fuse/request.h"
#include "millrace/mount/fuse/resumable_session.h"

namespace millrace::mount {
namespace {

/// If a repeated request failed to make a name because the name exists, returns what is there, with a lookup: the other
/// process has made it. `kind`: what the request makes.
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

/// Replies after a name was removed. A name that is gone counts as removed if the request is a repeated one.
void ReplyRemoved(fuse_req_t request, const char* operation, fuse_ino_t parent, const char* name, Status removed) {
  if (!removed && removed.error().code() == Code::kNotFound && RequestOrigin::Current().repeated) {
    RequestContext::Of(request).tree.DropName(parent, name);
    removed = {};
  }
  ReplyStatus(request, operation, parent, removed);
}

}  // namespace

void HandleLookup(fuse_req_t request, fuse_ino_t parent, const char* name) {
  RequestContext& context = RequestContext::Of(request);
  Result<std::optional<vfs::CacheableAttributes>> found = [&] {
    Interruptible wait(request);
    return context.tree.Lookup(parent, name, wait.call());
  }();
  if (!found) return ReplyError(request, "lookup", parent, found.error());
  fuse_entry_param param{};
  param.entry_timeout = SecondsOf(context.tree.negative_ttl());  // an inode of 0 is remembered as absent
  if (*found) param = ToEntry(**found);
  if (fuse_reply_entry(request, &param) != 0 && *found) context.tree.Forget(param.ino, 1);
}

void HandleForget(fuse_req_t request, fuse_ino_t inode, std::uint64_t lookups) {
  RequestContext::Of(request).tree.Forget(inode, lookups);
  fuse_reply_none(request);
}

void HandleForgetMany(fuse_req_t request, std::size_t count, fuse_forget_data* forgets) {
  for (std::size_t i = 0; i < count; ++i) RequestContext::Of(request).tree.Forget(forgets[i].ino, forgets[i].nlookup);
  fuse_reply_none(request);
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

void HandleMakeDirectory(fuse_req_t request, fuse_ino_t parent, const char* name, mode_t mode) {
  auto made = RequestContext::Of(request).tree.MakeDirectory(parent, name, OwnershipOf(request, mode));
  if (auto before = FindMade(request, parent, name, made, vfs::NodeKind::kDirectory)) made = *before;
  made ? ReplyEntry(request, *made) : ReplyError(request, "mkdir", parent, made.error());
}

void HandleLink(fuse_req_t request, fuse_ino_t, fuse_ino_t, const char*) {
  fuse_reply_err(request, EPERM);  // link(2): the file system does not support hard links
}

void HandleUnlink(fuse_req_t request, fuse_ino_t parent, const char* name) {
  RequestContext& context = RequestContext::Of(request);
  ReplyRemoved(request, "unlink", parent, name, context.tree.Unlink(parent, name));
}

void HandleRemoveDirectory(fuse_req_t request, fuse_ino_t parent, const char* name) {
  RequestContext& context = RequestContext::Of(request);
  ReplyRemoved(request, "rmdir", parent, name, context.tree.RemoveDirectory(parent, name));
}

void HandleRename(fuse_req_t request, fuse_ino_t parent, const char* name, fuse_ino_t new_parent, const char* new_name,
                  unsigned flags) {
  if (flags & ~static_cast<unsigned>(RENAME_NOREPLACE)) return void(fuse_reply_err(request, EINVAL));
  ReplyStatus(request, "rename", parent,
              RequestContext::Of(request).tree.Rename(
                  parent, name, new_parent, new_name,
                  {.no_replace = (flags & RENAME_NOREPLACE) != 0, .repeated = RequestOrigin::Current().repeated}));
}

}  // namespace millrace::mount
