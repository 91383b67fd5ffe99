// The readahead window of one open file.
#pragma once

#include <cstdint>

#include "millrace/base/bytes.h"

namespace millrace::vfs {

/// Watches the reads of one open file, and plans what to fetch ahead. A state machine without threads and clock. Not
/// thread-safe.
///
/// A sequence begins with a read at the start of the file, or with two reads that follow each other. Its window begins
/// at `initial`. Each time the reader has used half of the window, or a part, the window doubles, up to `bound`. Reads
/// slightly out of order, as the kernel sends them, and small skips do not end a sequence. A jump ends it. Reads after
/// a jump fetch exactly their bytes.
class ReadaheadWindow {
 public:
  struct Options {
    std::uint64_t initial = 1 * kMiB;
    std::uint64_t part = 8 * kMiB;  ///< windows of a part and more end at multiples of it
  };
  struct Plan {
    bool exact = false;  ///< fetch only the bytes read
    std::uint64_t prefetch_from = 0, prefetch_length = 0;
  };

  explicit ReadaheadWindow(Options options) : options_(options) {}

  Plan OnRead(std::uint64_t offset, std::uint64_t length, std::uint64_t bound);
  /// Reports how many bytes of the plan the cache has accepted. If they are fewer than planned (memory is short), the
  /// window is halved.
  void OnPrefetched(const Plan& plan, std::uint64_t accepted);
  bool sequential() const { return window_ > 0; }
  std::uint64_t window() const { return window_; }

 private:
  bool Follows(std::uint64_t offset, std::uint64_t length) const;

  const Options options_;
  bool started_ = false;
  std::uint64_t window_ = 0;    ///< 0: the reader jumps
  std::uint64_t expected_ = 0;  ///< the end of the furthest read of this sequence
  std::uint64_t ahead_ = 0;     ///< the end of what was fetched ahead
};

}  // namespace millrace::vfs
