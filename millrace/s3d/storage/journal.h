// The append-only file that says what exists. docs/formats/s3d.md has its bytes.
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

/// A sequence of records, each framed with its length and CRC-32C. The torn tail that a crash may leave is cut off on
/// opening; damage anywhere else fails with kCorrupt. Append, Replace and the size are for one thread at a time (the
/// storage's lock); Sync is for any thread.
class Journal {
 public:
  /// No record is longer: a reader takes a longer one for damage.
  static constexpr std::uint64_t kMaxRecordBytes = 64 * kMiB;

  using Visitor = std::function<Status(std::string_view record)>;
  /// Opens or creates the file "journal" in `root`, which must outlive the journal, and shows every whole record to
  /// `visit`, in order. With `sync` false nothing waits for the disk: a kill loses nothing, a power cut may.
  static Result<std::unique_ptr<Journal>> Open(const ManagedFolder& root, bool sync, const Visitor& visit);

  /// Hands records (as FrameRecord makes them) to the system: from now on they survive this process.
  Status Append(std::string_view frames);
  /// Blocks until all that was appended before survives the machine as well.
  Status Sync();

  std::uint64_t file_bytes() const { return file_bytes_; }
  /// Puts a new file in the place of this one, atomically; `frames` must say the same in fewer words.
  Status Replace(std::string_view frames);

 private:
  Journal(const ManagedFolder& root, bool sync, UniqueFd fd, std::uint64_t bytes);
  Status Flush();

  const ManagedFolder& root_;
  const std::string path_;  ///< for messages
  const bool sync_;
  Mutex fd_mutex_;
  std::shared_ptr<UniqueFd> fd_ MR_GUARDED_BY(fd_mutex_);
  std::uint64_t file_bytes_ = 0;  ///< of the present file
  bool broken_ = false;           ///< an append failed half-way: nothing may follow it
  GroupSync group_;
};

/// Appends a framed record to `frames`. Fails with kInvalidArgument, and appends nothing, beyond kMaxRecordBytes.
Status FrameRecord(std::string_view record, std::string& frames);

}  // namespace millrace::s3d
