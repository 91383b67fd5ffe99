#include "millrace/mount/fuse/handlers.h"

#include <fcntl.h>
#include <linux/falloc.h>
#include <sys/stat.h>
#include <sys/uio.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "millrace/base/hash/mix.h"
#include "millrace/mount/fuse/request.h"
#include "millrace/mount/point/mount_stats.h"

namespace millrace::mount {
namespace {

/// Linux asks for an open with O_TRUNC first, and only then refuses it with ETXTBSY if the file is a program that runs.
/// With O_RDONLY it has no earlier check, as it has for writing. So such an open leaves the file as it is until the
/// close, of which a refused open has none.
bool EmptiesAtClose(int flags) { return (flags & O_ACCMODE) == O_RDONLY && (flags & O_TRUNC) != 0; }

/// Gives the caller the number of an open file.
void KeepOpen(std::unique_ptr<vfs::File> file, fuse_req_t request, bool writes, fuse_file_info* info) {
  auto handle = std::make_unique<FileHandle>();
  handle->file = std::move(file);
  handle->emptied_at_close = EmptiesAtClose(info->flags);
  if (writes) handle->opener = ProcessOf(request);
  info->keep_cache = handle->file->may_keep_pages();
  info->noflush = !writes;
  info->fh = RequestContext::Of(request).files.AddFile(std::move(handle), (info->flags & O_ACCMODE) != O_WRONLY);
}

/// Replies to a repeated request that has opened a file for another process.
void ReplyRepeated(fuse_req_t request, fuse_file_info* info, std::uint64_t number) {
  RequestContext& context = RequestContext::Of(request);
  info->fh = number;
  info->keep_cache = 0;
  info->noflush = (info->flags & O_ACCMODE) == O_RDONLY && !EmptiesAtClose(info->flags);
  if (fuse_reply_open(request, info) != 0) (void)context.files.CloseFile(info->fh);
}

/// Replies to a repeated request that has made and opened a file for another process.
void ReplyCreatedBefore(fuse_req_t request, fuse_file_info* info, std::uint64_t number) {
  RequestContext& context = RequestContext::Of(request);
  info->fh = number;
  info->keep_cache = info->noflush = 0;
  FileHandle* const handle = FindFile(request, info);
  auto entry =
      handle != nullptr ? context.tree.GetAttributes(handle->file->inode()) : Fail(Code::kStale, "the file is closed");
  if (!entry) return ReplyError(request, "create", 0, entry.error());
  fuse_entry_param param = ToEntry(*entry);
  if (fuse_reply_create(request, &param, info) != 0) {
    (void)context.files.CloseFile(info->fh);
    context.tree.Forget(param.ino, 1);
  }
}

void FillDirectory(fuse_req_t request, fuse_ino_t inode, std::size_t size, off_t offset, fuse_file_info* info,
                   bool plus) {
  vfs::Directory* const opened = RequestContext::Of(request).files.FindDirectory(info->fh);
  if (opened == nullptr) return void(fuse_reply_err(request, ESTALE));
  vfs::Directory& directory = *opened;
  constexpr std::uint64_t kDots = 2;  // offsets 1 and 2 follow "." and ".."; above them are the tree's cookies
  std::vector<char> buffer(size);
  std::size_t used = 0;
  auto add = [&](const char* name, const fuse_entry_param& param, std::uint64_t next) {
    const std::size_t room = size - used;
    const auto at = static_cast<off_t>(next);
    const std::size_t needed = plus ? fuse_add_direntry_plus(request, buffer.data() + used, room, name, &param, at)
                                    : fuse_add_direntry(request, buffer.data() + used, room, name, &param.attr, at);
    if (needed > room) return false;
    used += needed;
    return true;
  };
  auto at = static_cast<std::uint64_t>(offset);
  for (; at < kDots; ++at) {
    fuse_entry_param dot{};
    dot.attr.st_ino = inode;
    dot.attr.st_mode = S_IFDIR;
    add(at == 0 ? "." : "..", dot, at + 1);
  }
  const std::size_t dots = used;
  auto visit = [&](const vfs::DirectoryEntry& entry) {
    fuse_entry_param param = ToEntry(entry.entry);
    if (!plus) {
      param.attr.st_mode = TypeOf(entry.kind);
      // readdir must show an inode number, and names without a lookup have none.
      if (param.attr.st_ino == 0) param.attr.st_ino = Mix64(std::hash<std::string_view>()(entry.name)) | 1;
    }
    return add(std::string(entry.name).c_str(), param, entry.next_cookie + kDots);
  };
  Status read = [&] {
    Interruptible wait(request);
    return plus ? directory.ReadPlus(at - kDots, visit, wait.call()) : directory.Read(at - kDots, visit, wait.call());
  }();
  if (!read && used == dots) return ReplyError(request, "readdir", inode, read.error());
  fuse_reply_buf(request, buffer.data(), used);
}

}  // namespace

void HandleOpen(fuse_req_t request, fuse_ino_t inode, fuse_file_info* info) {
  RequestContext& context = RequestContext::Of(request);
  const int access = info->flags & O_ACCMODE;
  const bool empties_at_close = EmptiesAtClose(info->flags), writes = access != O_RDONLY || empties_at_close;
  const bool truncates = (info->flags & O_TRUNC) != 0 && !empties_at_close;
  if (const auto number = context.files.FindRepeated()) return ReplyRepeated(request, info, *number);
  auto file = [&] {
    Interruptible wait(request);
    return context.tree.OpenFile(inode, {.read = access != O_WRONLY, .write = writes, .truncate = truncates},
                                 wait.call());
  }();
  if (!file) return ReplyError(request, "open", inode, file.error());
  // The kernel has cached the size of the version before.
  if ((*file)->found_change()) fuse_lowlevel_notify_inval_inode(context.session, inode, -1, 0);
  KeepOpen(*std::move(file), request, writes, info);
  if (fuse_reply_open(request, info) != 0) (void)context.files.CloseFile(info->fh);  // the caller was killed meanwhile
}

void HandleCreate(fuse_req_t request, fuse_ino_t parent, const char* name, mode_t mode, fuse_file_info* info) {
  RequestContext& context = RequestContext::Of(request);
  if (const auto number = context.files.FindRepeated()) return ReplyCreatedBefore(request, info, *number);
  auto created = context.tree.Create(parent, name, (info->flags & O_EXCL) != 0, OwnershipOf(request, mode));
  if (created && (info->flags & O_TRUNC)) {
    if (Status cut = created->file->Truncate(0); !cut) created = Fail(cut.error());
  }
  if (!created) return ReplyError(request, "create", parent, created.error());
  fuse_entry_param param = ToEntry(created->entry);
  KeepOpen(std::move(created->file), request, true, info);
  if (fuse_reply_create(request, &param, info) != 0) {
    (void)context.files.CloseFile(info->fh);
    context.tree.Forget(param.ino, 1);
  }
}

void HandleRead(fuse_req_t request, fuse_ino_t inode, std::size_t size, off_t offset, fuse_file_info* info) {
  thread_local Buffer buffer;  // for bytes that the cache does not keep
  if (buffer.size() < size) buffer = Buffer(std::max<std::size_t>(size, kMaxRequest));
  FileHandle* const handle = FindFile(request, info);
  if (handle == nullptr) return void(fuse_reply_err(request, ESTALE));
  auto read = [&] {
    Interruptible wait(request);
    return handle->file->ReadView(static_cast<std::uint64_t>(offset), buffer.span().first(size), wait.call());
  }();
  if (!read) return ReplyError(request, "read", inode, read.error());
  std::vector<iovec> pieces;
  for (const auto& piece : read->segments) {
    pieces.push_back({const_cast<std::byte*>(piece.bytes.data()), piece.bytes.size()});
  }
  RequestContext::Of(request).options.stats->CountRead(read->size());
  fuse_reply_iov(request, pieces.data(), static_cast<int>(pieces.size()));
}

void HandleWrite(fuse_req_t request, fuse_ino_t inode, const char* bytes, std::size_t size, off_t offset,
                 fuse_file_info* info) {
  FileHandle* const handle = FindFile(request, info);
  if (handle == nullptr) return void(fuse_reply_err(request, ESTALE));
  // Not interruptible: after half a write, the file would have to fail.
  Status written = handle->file->Write(static_cast<std::uint64_t>(offset), AsBytes({bytes, size}));
  if (!written) return ReplyError(request, "write", inode, written.error());
  RequestContext::Of(request).options.stats->CountWrite(size);
  fuse_reply_write(request, size);
}

void HandleAllocate(fuse_req_t request, fuse_ino_t inode, int mode, off_t offset, off_t length, fuse_file_info* info) {
  RequestContext& context = RequestContext::Of(request);
  FileHandle* const handle = FindFile(request, info);
  if (handle == nullptr) return void(fuse_reply_err(request, ESTALE));
  vfs::File& file = *handle->file;
  const bool zeros = (mode & (FALLOC_FL_PUNCH_HOLE | FALLOC_FL_ZERO_RANGE)) != 0;
  if (mode & ~(FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE | FALLOC_FL_ZERO_RANGE)) {
    return void(fuse_reply_err(request, EOPNOTSUPP));
  }
  const auto begin = static_cast<std::uint64_t>(offset), bytes = static_cast<std::uint64_t>(length);
  Status done = zeros ? file.Zero(begin, bytes) : Status();
  if (done && !(mode & FALLOC_FL_KEEP_SIZE)) {
    auto entry = context.tree.GetAttributes(inode);
    if (!entry) done = Fail(entry.error());
    if (entry && entry->attributes.size < begin + bytes) done = file.Truncate(begin + bytes);
  }
  ReplyStatus(request, "fallocate", inode, done);
}

void HandleFlush(fuse_req_t request, fuse_ino_t inode, fuse_file_info* info) {
  FileHandle* const handle = FindFile(request, info);
  if (handle == nullptr) return void(fuse_reply_err(request, ESTALE));
  // Children that inherited the descriptor close it when they end; the file is still being written by their parent.
  const pid_t closer = handle->opener == 0 ? 0 : ProcessOf(request);
  if (closer != 0 && closer != handle->opener) return void(fuse_reply_err(request, 0));
  if (std::exchange(handle->emptied_at_close, false)) {
    if (Status cut = handle->file->Truncate(0); !cut) return ReplyError(request, "close", inode, cut.error());
  }
  ReplyStatus(request, "close", inode, handle->file->Flush());
}

void HandleSync(fuse_req_t request, fuse_ino_t inode, int, fuse_file_info* info) {
  FileHandle* const handle = FindFile(request, info);
  if (handle == nullptr) return void(fuse_reply_err(request, ESTALE));
  ReplyStatus(request, "fsync", inode, handle->file->Sync());
}

void HandleRelease(fuse_req_t request, fuse_ino_t inode, fuse_file_info* info) {
  ReplyStatus(request, "the last close", inode, RequestContext::Of(request).files.CloseFile(info->fh));
}

void HandleOpenDirectory(fuse_req_t request, fuse_ino_t inode, fuse_file_info* info) {
  RequestContext& context = RequestContext::Of(request);
  if (const auto number = context.files.FindRepeated()) {
    info->fh = *number;
    if (fuse_reply_open(request, info) != 0) context.files.CloseDirectory(info->fh);
    return;
  }
  auto directory = context.tree.OpenDirectory(inode);
  if (!directory) return ReplyError(request, "opendir", inode, directory.error());
  info->fh = context.files.AddDirectory(*std::move(directory));
  if (fuse_reply_open(request, info) != 0) context.files.CloseDirectory(info->fh);
}

void HandleReadDirectory(fuse_req_t request, fuse_ino_t inode, std::size_t size, off_t offset, fuse_file_info* info) {
  FillDirectory(request, inode, size, offset, info, false);
}

void HandleReadDirectoryPlus(fuse_req_t request, fuse_ino_t inode, std::size_t size, off_t offset,
                             fuse_file_info* info) {
  FillDirectory(request, inode, size, offset, info, true);
}

void HandleReleaseDirectory(fuse_req_t request, fuse_ino_t, fuse_file_info* info) {
  RequestContext::Of(request).files.CloseDirectory(info->fh);
  fuse_reply_err(request, 0);
}

void HandleSyncDirectory(fuse_req_t request, fuse_ino_t, int, fuse_file_info*) { fuse_reply_err(request, 0); }

}  // namespace millrace::mount
