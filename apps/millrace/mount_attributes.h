// FUSE requests about attributes and links: what `vfs::Tree` stores beside a file's bytes.
#pragma once

#include "apps/millrace/mount_request.h"

namespace millrace::mount {

/// What a setattr request asks for, but for the size.
vfs::AttributeChange ToChange(const struct stat& wanted, int which);
/// Whom something new belongs to, and its permissions.
vfs::Ownership OwnershipOf(fuse_req_t request, mode_t mode);

// Handlers; the session's user data is a RequestContext.
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
