// The handlers of FUSE requests, one for each operation of libfuse's low-level interface.
#pragma once

#define FUSE_USE_VERSION 312
#include <fuse3/fuse_lowlevel.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "millrace/base/bytes.h"
#include "millrace/base/result.h"

namespace millrace::mount {

/// Returns all handlers but `init`. Those of operations that MountStats has are counted, with their time. A session
/// whose user data is a RequestContext may use them.
fuse_lowlevel_ops CountedHandlers();

// Names: name_handlers.cc.
void HandleLookup(fuse_req_t request, fuse_ino_t parent, const char* name);
void HandleForget(fuse_req_t request, fuse_ino_t inode, std::uint64_t lookups);
void HandleForgetMany(fuse_req_t request, std::size_t count, fuse_forget_data* forgets);
void HandleReadLink(fuse_req_t request, fuse_ino_t inode);
void HandleSymlink(fuse_req_t request, const char* target, fuse_ino_t parent, const char* name);
void HandleMakeNode(fuse_req_t request, fuse_ino_t parent, const char* name, mode_t mode, dev_t device);
void HandleMakeDirectory(fuse_req_t request, fuse_ino_t parent, const char* name, mode_t mode);
void HandleLink(fuse_req_t request, fuse_ino_t inode, fuse_ino_t new_parent, const char* new_name);
void HandleUnlink(fuse_req_t request, fuse_ino_t parent, const char* name);
void HandleRemoveDirectory(fuse_req_t request, fuse_ino_t parent, const char* name);
void HandleRename(fuse_req_t request, fuse_ino_t parent, const char* name, fuse_ino_t new_parent, const char* new_name,
                  unsigned flags);

// Open files and directories: file_handlers.cc.
void HandleOpen(fuse_req_t request, fuse_ino_t inode, fuse_file_info* info);
void HandleCreate(fuse_req_t request, fuse_ino_t parent, const char* name, mode_t mode, fuse_file_info* info);
void HandleRead(fuse_req_t request, fuse_ino_t inode, std::size_t size, off_t offset, fuse_file_info* info);
void HandleWrite(fuse_req_t request, fuse_ino_t inode, const char* bytes, std::size_t size, off_t offset,
                 fuse_file_info* info);
void HandleAllocate(fuse_req_t request, fuse_ino_t inode, int mode, off_t offset, off_t length, fuse_file_info* info);
void HandleFlush(fuse_req_t request, fuse_ino_t inode, fuse_file_info* info);
void HandleSync(fuse_req_t request, fuse_ino_t inode, int data_only, fuse_file_info* info);
void HandleRelease(fuse_req_t request, fuse_ino_t inode, fuse_file_info* info);
void HandleOpenDirectory(fuse_req_t request, fuse_ino_t inode, fuse_file_info* info);
void HandleReadDirectory(fuse_req_t request, fuse_ino_t inode, std::size_t size, off_t offset, fuse_file_info* info);
void HandleReadDirectoryPlus(fuse_req_t request, fuse_ino_t inode, std::size_t size, off_t offset,
                             fuse_file_info* info);
void HandleReleaseDirectory(fuse_req_t request, fuse_ino_t inode, fuse_file_info* info);
void HandleSyncDirectory(fuse_req_t request, fuse_ino_t inode, int data_only, fuse_file_info* info);

// Attributes, extended attributes, and the size of the file system: attribute_handlers.cc.
void HandleGetAttributes(fuse_req_t request, fuse_ino_t inode, fuse_file_info* info);
void HandleSetAttributes(fuse_req_t request, fuse_ino_t inode, struct stat* wanted, int which, fuse_file_info* info);
void HandleStatFs(fuse_req_t request, fuse_ino_t inode);
void HandleGetXattr(fuse_req_t request, fuse_ino_t inode, const char* name, std::size_t room);
void HandleListXattrs(fuse_req_t request, fuse_ino_t inode, std::size_t room);
void HandleSetXattr(fuse_req_t request, fuse_ino_t inode, const char* name, const char* value, std::size_t size,
                    int flags);
void HandleRemoveXattr(fuse_req_t request, fuse_ino_t inode, const char* name);

// Questions of programs (point/control.h, object/local/mount_location.h), and their read hints, by which they announce
// the files that they will open (object/local/mount_hints.h): ioctl_handler.cc.
void HandleIoctl(fuse_req_t request, fuse_ino_t inode, unsigned command, void* argument, fuse_file_info* info,
                 unsigned flags, const void* in, std::size_t in_size, std::size_t out_size);
/// Returns the file names in the argument of a kWillOpenRequest, which comes from outside and may be malformed. The
/// names are relative, not empty, and without "." and ".." components. Errors: kInvalidArgument if the argument breaks
/// the format or a name is one that no file can have.
Result<std::vector<std::string>> ParseWillOpen(ByteSpan argument);

}  // namespace millrace::mount
