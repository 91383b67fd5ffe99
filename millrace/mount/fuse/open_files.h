// The open files and directories of a mount, by the numbers that the kernel knows.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>

#include "millrace/base/threads/sync.h"
#include "millrace/mount/fuse/resumable_session.h"
#include "millrace/vfs/staging/session_log.h"
#include "millrace/vfs/tree.h"

namespace millrace::mount {

/// An open file as the kernel knows it.
struct FileHandle {
  std::unique_ptr<vfs::File> file;
  pid_t opener = 0;               ///< the process that opened it for writing
  bool emptied_at_close = false;  ///< it was opened with O_RDONLY and O_TRUNC: HandleOpen
};

/// Owns the open files and directories, because an unmount may come before the kernel releases them. With a session,
/// another process can go on with them under the same numbers. Thread-safe.
class OpenFiles {
 public:
  /// `session` gets what is opened and closed. May be null.
  explicit OpenFiles(vfs::SessionLog* session) : session_(session) {}

  /// Opens again what another process had open. Call once, first.
  void Restore(vfs::Tree& tree, const vfs::SessionState& state) MR_EXCLUDES(mutex_);
  /// Returns the number of the file or directory that the thread's present request had opened for another process.
  std::optional<std::uint64_t> FindRepeated() MR_EXCLUDES(mutex_);

  /// Returns the file's number.
  std::uint64_t AddFile(std::unique_ptr<FileHandle> handle, bool reads) MR_EXCLUDES(mutex_);
  /// Returns null for a file that was lost with another process. The kernel releases a file after all its requests, so
  /// the file lives as long as their handlers.
  FileHandle* FindFile(std::uint64_t number) MR_EXCLUDES(mutex_);
  /// Closes a file. Succeeds if it is gone. Errors: those of File::Close.
  Status CloseFile(std::uint64_t number) MR_EXCLUDES(mutex_);

  std::uint64_t AddDirectory(std::unique_ptr<vfs::Directory> directory) MR_EXCLUDES(mutex_);
  /// As FindFile.
  vfs::Directory* FindDirectory(std::uint64_t number) MR_EXCLUDES(mutex_);
  void CloseDirectory(std::uint64_t number) MR_EXCLUDES(mutex_);

 private:
  vfs::SessionLog* const session_;
  Mutex mutex_;
  std::unordered_map<std::uint64_t, std::unique_ptr<FileHandle>> files_ MR_GUARDED_BY(mutex_);
  std::unordered_map<std::uint64_t, std::unique_ptr<vfs::Directory>> directories_ MR_GUARDED_BY(mutex_);
  std::uint64_t next_number_ MR_GUARDED_BY(mutex_) = 1;
  /// By the request that opened them, what another process had opened.
  std::unordered_map<std::uint64_t, std::uint64_t> opened_before_ MR_GUARDED_BY(mutex_);
};

}  // namespace millrace::mount
