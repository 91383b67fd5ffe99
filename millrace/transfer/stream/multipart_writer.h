// Streams bytes of unknown total length into one object, in parallel parts, with bounded memory.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "millrace/base/bytes.h"
#include "millrace/base/result.h"
#include "millrace/base/threads/memory_budget.h"
#include "millrace/object/store.h"

namespace millrace::transfer {

/// One writer thread at a time. Nothing is visible under the key before Finish succeeds; a writer that is destroyed
/// without it aborts its upload. Objects up to one part go out as a single Put; longer ones as multipart, the part size
/// growing so that `limits().max_parts` is never exceeded. A writer that waits for memory holds next to none, so any
/// number of threads may write at once; one thread that keeps writers open holds up to a part of budget for each.
class MultipartWriter {
 public:
  struct Options {
    std::uint64_t part_bytes = 8 * kMiB;  ///< raised to the store's minimum
    int parallel_parts = 4;
    object::PutOptions put;  ///< conditions apply when the object is published
    /// What the caller expects to write, 0 if unknown: spares memory for small objects, and parts that must grow.
    std::uint64_t expected_bytes = 0;
  };
  /// Store and budget must outlive the writer.
  MultipartWriter(object::Store& store, MemoryBudget& budget, std::string key, Options options);
  ~MultipartWriter();

  /// Copies; blocks while `parallel_parts` parts are on their way. A part that failed makes this and every later call
  /// fail.
  Status Write(ByteSpan bytes, object::Call call = {});
  /// Memory of the current part, for callers that can read straight into it: fill a front portion, then Commit its
  /// size. Never empty. Valid until the next call. Blocks and fails as Write does.
  Result<MutableByteSpan> Space(object::Call call = {});
  Status Commit(std::size_t bytes);
  struct Finished {
    std::string etag;
    std::uint64_t size = 0;
    std::uint32_t crc32c = 0;  ///< of the whole content
  };
  /// Uploads what is left, waits for all parts, publishes atomically.
  Result<Finished> Finish(object::Call call = {});
  /// Gives up and removes what was uploaded. Safe at any time; Finish is then no longer allowed.
  void Abort();
  std::uint64_t bytes_written() const;

 private:
  struct Rep;
  std::unique_ptr<Rep> rep_;
};

}  // namespace millrace::transfer
