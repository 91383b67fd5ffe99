// Streams bytes of unknown total length into one object, in parallel parts, with bounded memory.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "millrace/base/bytes.h"
#include "millrace/base/error.h"
#include "millrace/base/threads/memory_budget.h"
#include "millrace/object/store.h"

namespace millrace::transfer {

/// Writes one object. One thread at a time. Nothing is visible under the key before Finish() succeeds. The destructor
/// aborts an unfinished upload. An object of at most one part is a single Put. A longer one is a multipart upload,
/// whose part size grows so that `limits().max_parts` is never exceeded.
///
/// A writer that waits for memory holds at most its first 64 KiB, so any number of threads may write at once. A thread
/// that keeps several writers open holds up to a part of the budget for each.
class MultipartWriter {
 public:
  /// The properties of the object and of its parts.
  struct Options {
    std::uint64_t part_bytes = 8 * kMiB;  ///< raised to the store's minimum
    int parallel_parts = 4;               ///< parts in flight
    object::PutOptions put;               ///< conditions apply when the object is published
    /// The expected size, 0 if unknown. With it, small objects need less memory, and parts need not grow.
    std::uint64_t expected_bytes = 0;
  };
  /// REQUIRES: `store` and `budget` outlive the writer.
  MultipartWriter(object::Store& store, MemoryBudget& budget, std::string key, Options options);
  ~MultipartWriter();

  /// Copies `bytes`. Blocks while `parallel_parts` parts are in flight, and until there is memory. After a part has
  /// failed, this and every later call fail with its error.
  Status Write(ByteSpan bytes, object::Call call = {});
  /// Returns free memory of the current part, for callers that can read straight into it. Fill its beginning, then call
  /// Commit(). Never empty. Valid until the next call. Blocks and fails as Write() does.
  Result<MutableByteSpan> Space(object::Call call = {});
  /// Appends the first `bytes` bytes of Space() to the object.
  Status Commit(std::size_t bytes);
  /// The object that was written.
  struct Finished {
    std::string etag;          ///< of the object
    std::uint64_t size = 0;    ///< bytes
    std::uint32_t crc32c = 0;  ///< of the whole content
  };
  /// Uploads the rest, waits for all parts and publishes the object atomically.
  Result<Finished> Finish(object::Call call = {});
  /// Aborts the upload and waits for its requests. May be called at any time. Later calls of Finish() fail.
  void Abort();
  std::uint64_t bytes_written() const;  ///< so far

 private:
  struct Rep;
  std::unique_ptr<Rep> rep_;
};

}  // namespace millrace::transfer
