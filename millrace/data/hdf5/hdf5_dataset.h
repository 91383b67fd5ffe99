// One data set of an HDF5 file: a table of integers, stored in chunks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "millrace/base/result.h"
#include "millrace/data/hdf5/hdf5_bytes.h"

namespace millrace::data {

/// A filter that changed the bytes of a chunk when it was written.
enum class Hdf5Filter : std::uint16_t {
  kDeflate = 1,     ///< compressed by zlib
  kShuffle = 2,     ///< first bytes of all elements first, and so on
  kFletcher32 = 3,  ///< a checksum behind the bytes
};

/// The place of a chunk in the file.
struct Hdf5Chunk {
  std::uint64_t address = 0;
  std::uint32_t bytes = 0;            ///< stored
  std::uint32_t skipped_filters = 0;  ///< bit i: filter i was not applied
};

/// The table and its places. Every chunk is in the file. Plain data.
struct Hdf5Dataset {
  std::uint64_t rows = 0, columns = 1;
  int element_bytes = 0;  ///< 1, 2, 4 or 8; little-endian
  bool is_signed = true;
  std::uint64_t chunk_rows = 0, chunk_columns = 1;
  std::vector<Hdf5Filter> filters;  ///< in the order of writing
  std::vector<Hdf5Chunk> chunks;    ///< [⌈rows / chunk_rows⌉, ⌈columns / chunk_columns⌉]
  /// true: chunks at the edges have chunk_rows · chunk_columns elements, too, and those outside the table do not count.
  /// false: the table is stored in one piece, and the last chunk has only the rows that are left.
  bool pads_edges = true;

  std::uint64_t column_chunks() const { return (columns + chunk_columns - 1) / chunk_columns; }
  /// Returns the number of bytes that chunk `i` decodes to.
  std::uint64_t DecodedBytes(std::size_t i) const;
};

/// The most bytes that a chunk decodes to. A guess; h5py's own choice is at most 1 MiB.
inline constexpr std::uint64_t kMaxHdf5Chunk = 64 * kMiB;

/// Returns the data set whose object header is at `address`. Reads all its places. Blocks.
/// Errors: kCorrupt if the file contradicts itself or lacks a chunk. kUnsupported if the data set does not hold
/// integers, does not have one or two dimensions, or is stored in a way that this reader lacks. Both name the file and
/// `name`.
Result<Hdf5Dataset> ReadHdf5Dataset(MetadataReader& file, std::uint64_t address, const std::string& name);

/// Returns the elements of chunk `i`, row by row, from its stored bytes.
/// Errors: kCorrupt, without the name of the file.
Result<Buffer> DecodeHdf5Chunk(const Hdf5Dataset& dataset, std::size_t i, ByteSpan stored);

}  // namespace millrace::data
