// One object out of memory that is already there: parts go out of the caller's bytes, without another copy.
#pragma once

#include <cstdint>
#include <string>

#include "millrace/base/result.h"
#include "millrace/object/store.h"

namespace millrace::checkpoint {

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
