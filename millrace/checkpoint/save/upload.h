// One object out of memory that is already there: parts go out of the caller's bytes, without another copy.
#pragma once

#include <cstdint>
#include <string>

#include "millrace/base/result.h"
#include "millrace/object/store.h"

namespace millrace::checkpoint {

/// Holds a stream of bytes below a rate: the first go at once, those that follow when the rate allows. One thread.
class Pacer {
 public:
  /// `bytes_per_second` 0: no limit. The clock must outlive it.
  Pacer(Clock& clock, std::uint64_t bytes_per_second) : clock_(clock), rate_(bytes_per_second) {}
  /// Blocks until `bytes` more may go.
  void Pass(std::uint64_t bytes);

 private:
  Clock& clock_;
  const std::uint64_t rate_;
  TimePoint free_at_{};  ///< when all that went before has had its time
};

struct UploadOptions {
  std::uint64_t part_bytes = 8 * kMiB;  ///< raised to what the store's limits want
  int parallel_parts = 4;
};

/// Puts `bytes` under `key`: in one Put when they fit one part, else as a multipart upload with `parallel_parts` parts
/// in flight. `before` sees each part just before it goes out, in order, while earlier ones are on their way, and
/// yields its CRC-32C, or ends the upload with an error. Blocks until the object is there. On failure the upload is
/// aborted, and nothing is visible unless publishing itself failed.
Status UploadBytes(object::Store& store, const std::string& key, ByteSpan bytes, const UploadOptions& options,
                   const std::function<Result<std::uint32_t>(ByteSpan)>& before, const object::Call& call = {});

}  // namespace millrace::checkpoint
