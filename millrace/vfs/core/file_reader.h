// Reads of one open file, through the block cache, with readahead.
#pragma once

#include <cstdint>

#include "millrace/base/threads/sync.h"
#include "millrace/vfs/core/tree_core.h"
#include "millrace/vfs/read/readahead.h"

namespace millrace::vfs {

/// Reads the stored versions of one open file, and prefetches what it is likely to read next. Thread-safe. `core` must
/// outlive it.
class FileReader {
 public:
  explicit FileReader(TreeCore& core);
  ~FileReader();
  FileReader(const FileReader&) = delete;
  FileReader& operator=(const FileReader&) = delete;

  /// Returns up to room.size() bytes of `version` from `offset`; no bytes at its end. Blocks. Errors: kStale if the
  /// object was replaced.
  Result<cache::View> Read(const cache::ObjectVersion& version, std::uint64_t offset, MutableByteSpan room,
                           const object::Call& call) MR_EXCLUDES(mutex_);

 private:
  std::uint64_t Bound() const;
  void Count(bool sequential);

  TreeCore& core_;
  Mutex mutex_;
  ReadaheadWindow window_ MR_GUARDED_BY(mutex_);
  bool counted_ = false;  ///< guarded by mutex_ until destruction
};

}  // namespace millrace::vfs
