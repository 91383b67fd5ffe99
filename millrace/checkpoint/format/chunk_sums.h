// The checksums of a file's chunks, computed while the file is written.
#pragma once

#include <cstdint>
#include <vector>

#include "millrace/base/bytes.h"
#include "millrace/checkpoint/format/manifest.h"

namespace millrace::checkpoint {

/// The CRC-32C of every chunk of bytes that come in pieces of any size.
class ChunkSums {
 public:
  explicit ChunkSums(std::uint64_t chunk_bytes) : chunk_bytes_(chunk_bytes) {}
  /// Yields the CRC-32C of these bytes alone.
  std::uint32_t Add(ByteSpan bytes);
  /// Of all chunks, the last one as far as it goes.
  FileMeta Finish();

 private:
  const std::uint64_t chunk_bytes_;
  std::uint64_t size_ = 0;
  std::uint32_t open_ = 0;  ///< of the chunk that is not full yet
  std::vector<std::uint32_t> sums_;
};

}  // namespace millrace::checkpoint
