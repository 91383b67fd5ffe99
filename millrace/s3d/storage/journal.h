// The write-ahead log of an endpoint: an append-only file of all changes. docs/formats/s3d.md describes its bytes.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "millrace/base/bytes.h"
#include "millrace/base/files/files.h"
#include "millrace/base/files/managed_folder.h"
#include "millrace/base/result.h"
#include "millrace/s3d/storage/group_sync.h"

namespace millrace::s3d {

/// A sequence of records, each with its length and CRC-32C. Open() cuts off a torn tail that a crash has left, and
/// fails with kCorrupt on damage anywhere else. One thread at a time may call Append, Replace and file_bytes (the
/// storage's lock). Any thread may call Sync.
class Journal {
 public:
  /// The longest record. A reader takes a longer one for damage. 2,000,000 extents of an object fit.
  static constexpr std::uint64_t kMaxRecordBytes = 64 * kMiB;

  using Visitor = std::function<Status(std::string_view record)>;
  /// Opens or creates the file "journal" in `root` and calls `visit` with every record, in order. If `sync` is false,
  /// nothing waits for the disk: a killed process loses nothing, a power failure may lose changes.
  /// REQUIRES: `root` outlives the journal.
  /// Errors: kCorrupt; those of `visit`.
  static Result<std::unique_ptr<Journal>> Open(const ManagedFolder& root, bool sync, const Visitor& visit);

  /// Writes records (as FrameRecord() makes them) to the kernel. From now on they survive this process.
  Status Append(std::string_view frames);
  /// Blocks until everything appended so far survives a power failure.
  Status Sync();

  std::uint64_t file_bytes() const { return file_bytes_; }
  /// Replaces the file atomically. REQUIRES: `frames` describes the same state as the journal.
  Status Replace(std::string_view frames);

 private:
  Journal(const ManagedFolder& root, bool sync, UniqueFd fd, std::uint64_t bytes);
  Status Flush();

  const ManagedFolder& root_;
  const std::string path_;  ///< for messages
  const bool sync_;
  Mutex fd_mutex_;
  std::shared_ptr<UniqueFd> fd_ MR_GUARDED_BY(fd_mutex_);
  std::uint64_t file_bytes_ = 0;
  bool broken_ = false;  ///< an append failed half-way; nothing may be appended after it
  GroupSync group_;
};

/// Appends a record with its frame to `frames`.
/// Errors: kInvalidArgument if it is longer than kMaxRecordBytes; nothing is then appended.
Status FrameRecord(std::string_view record, std::string& frames);

}  // namespace millrace::s3d
