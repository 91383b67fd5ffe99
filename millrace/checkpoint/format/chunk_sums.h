// The checksums of a file's chunks, computed while the file is written.
#pragma once

#include <cstdint>
#include <vector>

#include "millrace/base/bytes.h"
#include "millrace/checkpoint/format/manifest.h"

namespace millrace::checkpoint {

/// Computes the CRC-32C of every chunk of a file. The bytes come in order, in runs of any size. One thread.
class ChunkSums {
 public:
  explicit ChunkSums(std::uint64_t chunk_bytes) : chunk_bytes_(chunk_bytes) {}
  /// Adds the next bytes. Returns the CRC-32C of these bytes alone.
  std::uint32_t Add(ByteSpan bytes);
  /// Returns size and checksums of the file. The last chunk may be short.
  FileMeta Finish();

 private:
  const std::uint64_t chunk_bytes_;
  std::uint64_t size_ = 0;
  std::uint32_t open_ = 0;  ///< CRC-32C of the chunk that is not full yet
  std::vector<std::uint32_t> sums_;
};

}  // namespace millrace::checkpoint
