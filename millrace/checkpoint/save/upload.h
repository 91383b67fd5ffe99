// Uploading one object from memory, without another copy of its bytes.
#pragma once

#include <cstdint>
#include <string>

#include "millrace/base/result.h"
#include "millrace/object/store.h"

namespace millrace::checkpoint {

struct UploadOptions {
  std::uint64_t part_bytes = 8 * kMiB;  ///< raised if the store's limits on parts require it
  int parallel_parts = 4;
};

/// Puts `bytes` under `key`. Uses one Put if they fit one part, else a multipart upload with `parallel_parts` parts in
/// flight. Calls `before` with each part in order, just before the part is sent and while earlier parts are in flight.
/// `before` returns the part's CRC-32C, or an error that ends the upload. Blocks until the object exists. If it fails,
/// the upload is aborted, and the object is not visible unless the last request, which publishes it, failed.
Status UploadBytes(object::Store& store, const std::string& key, ByteSpan bytes, const UploadOptions& options,
                   const std::function<Result<std::uint32_t>(ByteSpan)>& before, const object::Call& call = {});

}  // namespace millrace::checkpoint
