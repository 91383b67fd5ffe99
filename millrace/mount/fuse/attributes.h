// Handlers of FUSE requests about attributes, extended attributes, links and special files.
#pragma once

#include "millrace/mount/fuse/request.h"

namespace millrace::mount {

/// Returns the change that a setattr request asks for, except the size.
vfs::AttributeChange ToChange(const struct stat& wanted, int which);
/// If a repeated request failed to make a name because the name exists, returns what is there, with a lookup: the other
/// process has made it. `kind`: what the request makes.
std::optional<vfs::CacheableAttributes> FindMade(fuse_req_t request, fuse_ino_t parent, const char* name,
                                                 const Result<vfs::CacheableAttributes>& made, vfs::NodeKind kind);
/// Returns the owner and the permissions of a new file.
vfs::Ownership OwnershipOf(fuse_req_t request, mode_t mode);

// Handlers of fuse_lowlevel_ops. The session's user data is a RequestContext.
void HandleReadLink(fuse_req_t request, fuse_ino_t inode);
void HandleSymlink(fuse_req_t request, const char* target, fuse_ino_t parent, const char* name);
void HandleMakeNode(fuse_req_t request, fuse_ino_t parent, const char* name, mode_t mode, dev_t device);
void HandleLink(fuse_req_t request, fuse_ino_t inode, fuse_ino_t new_parent, const char* new_name);
void HandleGetXattr(fuse_req_t request, fuse_ino_t inode, const char* name, std::size_t room);
void HandleListXattrs(fuse_req_t request, fuse_ino_t inode, std::size_t room);
void HandleSetXattr(fuse_req_t request, fuse_ino_t inode, const char* name, const char* value, std::size_t size,
                    int flags);
void HandleRemoveXattr(fuse_req_t request, fuse_ino_t inode, const char* name);

}  // namespace millrace::mount
