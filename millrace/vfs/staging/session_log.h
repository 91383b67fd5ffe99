// A log of the changes of a SessionState. If the process of a mount is killed, another process restores the state from
// the log, and serves the same mount.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "millrace/base/bytes.h"
#include "millrace/base/files/files.h"
#include "millrace/base/log.h"
#include "millrace/base/result.h"
#include "millrace/base/threads/sync.h"
#include "millrace/vfs/staging/session_state.h"

namespace millrace::vfs {

/// An append-only file. Each change is one record with a checksum, written by one system call before the caller goes
/// on. So the log survives the death of the process; it need not survive the machine's, as no mount does. When the log
/// has grown to several times what its state needs, it is replaced by the state.
///
/// If the disk refuses a record, the log is removed: then no process can take the mount over, and the mount goes on as
/// one without a log.
///
/// Thread-safe. Every call is one write(2), except those that replace the log: these take a second for each million
/// inodes, and the memory of a SessionState.
class SessionLog {
 public:
  /// Makes a new log. `header` is for the owner. Errors: those of the disk.
  static Result<std::unique_ptr<SessionLog>> Create(const std::filesystem::path& path, std::string_view header,
                                                    Logger log);
  /// Reads a log that another process has left, and continues it.
  /// Errors: kNotFound if there is none; kCorrupt if it is no log.
  struct Resumed;
  static Result<Resumed> Resume(const std::filesystem::path& path, Logger log);
  /// Returns the state that the records in `bytes` make. An incomplete last record does not count.
  /// Errors: kCorrupt if a record is damaged.
  static Result<SessionState> Read(ByteSpan bytes, std::string_view what);

  void PutHeader(std::string_view header);
  void PutInode(InodeId id, const SavedInode& inode);
  void PutLookups(InodeId id, std::uint32_t lookups);
  void RemoveInode(InodeId id);
  void PutFile(std::uint64_t number, const SavedFile& file);
  void RemoveFile(std::uint64_t number);
  /// Open files of this inode that read the version `from` read another version of the same bytes from now on.
  void MoveVersion(InodeId inode, std::string_view from, std::string_view to, std::uint64_t size);
  void PutDirectory(std::uint64_t number, const SavedDirectory& directory);
  void PutPage(std::uint64_t directory, std::uint64_t page, const SavedPage& begin);
  void RemoveDirectory(std::uint64_t number);
  void PutContent(std::uint64_t content, const SavedContent& saved);
  /// Bytes of a content were written: [begin, end) is held and changed.
  void PutWrite(std::uint64_t content, Interval range, WallTime modified);
  void RemoveContent(std::uint64_t content);

  /// Returns a number that no content of this log has had.
  std::uint64_t NextContent() MR_EXCLUDES(mutex_);
  /// Removes the file. Later records are dropped.
  void Remove() MR_EXCLUDES(mutex_);

 private:
  SessionLog(std::filesystem::path path, UniqueFd fd, std::uint64_t size, std::uint64_t next_content, Logger log);
  void Append(std::string_view record) MR_EXCLUDES(mutex_);
  Status Replace() MR_REQUIRES(mutex_);
  void Abandon(const Error& reason) MR_REQUIRES(mutex_);

  const std::filesystem::path path_;
  const Logger log_;
  Mutex mutex_;
  UniqueFd fd_ MR_GUARDED_BY(mutex_);
  std::uint64_t size_ MR_GUARDED_BY(mutex_);        ///< bytes of the file
  std::uint64_t replace_at_ MR_GUARDED_BY(mutex_);  ///< the size at which the log is replaced by its state
  std::uint64_t next_content_ MR_GUARDED_BY(mutex_);
};

struct SessionLog::Resumed {
  std::unique_ptr<SessionLog> log;
  SessionState state;
};

}  // namespace millrace::vfs
