// Undoes the filters of a chunk.
#include <zlib.h>

#include <algorithm>
#include <cstring>

#include "millrace/data/hdf5/hdf5_dataset.h"

namespace millrace::data {
namespace {

constexpr std::size_t kChecksumBytes = 4;

/// Decompresses exactly `bytes` bytes.
Result<Buffer> Inflate(ByteSpan from, std::size_t bytes) {
  Buffer plain(bytes);
  z_stream stream{};
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(from.data()));
  stream.avail_in = static_cast<uInt>(from.size());
  stream.next_out = reinterpret_cast<Bytef*>(plain.data());
  stream.avail_out = static_cast<uInt>(bytes);
  if (inflateInit(&stream) != Z_OK) return Fail(Code::kResourceExhausted, "no memory to decompress a chunk");
  const int status = inflate(&stream, Z_FINISH);
  const bool whole = status == Z_STREAM_END && stream.avail_out == 0;
  inflateEnd(&stream);
  if (!whole) return Fail(Code::kCorrupt, "a compressed chunk does not decompress to its elements");
  return plain;
}

Buffer Unshuffle(ByteSpan from, std::size_t element_bytes) {
  Buffer plain(from.size());
  const std::size_t elements = from.size() / element_bytes;
  for (std::size_t byte = 0; byte < element_bytes; ++byte) {
    for (std::size_t i = 0; i < elements; ++i) {
      plain.data()[i * element_bytes + byte] = from[byte * elements + i];
    }
  }
  // Bytes that make no whole element stay where they are.
  std::ranges::copy(from.subspan(elements * element_bytes), plain.data() + elements * element_bytes);
  return plain;
}

/// Fletcher's checksum over big-endian words of 16 bits, as HDF5 computes it.
std::uint32_t Fletcher32(ByteSpan bytes) {
  std::uint32_t sum = 0, sum_of_sums = 0;
  auto add = [&](std::uint32_t word) {
    sum = (sum + word) % 65'535;
    sum_of_sums = (sum_of_sums + sum) % 65'535;
  };
  for (std::size_t i = 0; i + 1 < bytes.size(); i += 2) {
    add(std::to_integer<std::uint32_t>(bytes[i]) << 8 | std::to_integer<std::uint32_t>(bytes[i + 1]));
  }
  if (bytes.size() % 2 == 1) add(std::to_integer<std::uint32_t>(bytes.back()) << 8);
  return sum_of_sums << 16 | sum;
}

/// HDF5 folds sums instead of dividing, so that 0 may be stored as 65,535.
bool ChecksumsMatch(std::uint32_t ours, std::uint32_t stored) {
  auto half = [](std::uint32_t value) { return value % 65'535; };
  return half(ours >> 16) == half(stored >> 16) && half(ours & 0xFFFF) == half(stored & 0xFFFF);
}

}  // namespace

Result<Buffer> DecodeHdf5Chunk(const Hdf5Dataset& dataset, std::size_t i, ByteSpan stored) {
  const std::uint32_t skipped = dataset.chunks[i].skipped_filters;
  const auto applied = [&](std::size_t f) { return (skipped >> f & 1) == 0; };
  // The bytes in front of the filters that are not undone yet. Only checksums change them without compression.
  std::size_t plain_bytes = dataset.DecodedBytes(i);
  for (std::size_t f = 0; f < dataset.filters.size(); ++f) {
    if (applied(f) && dataset.filters[f] == Hdf5Filter::kDeflate) break;
    if (applied(f) && dataset.filters[f] == Hdf5Filter::kFletcher32) plain_bytes += kChecksumBytes;
  }
  Buffer owned;
  ByteSpan bytes = stored;
  for (std::size_t f = dataset.filters.size(); f-- > 0;) {
    if (!applied(f)) continue;
    switch (dataset.filters[f]) {
      case Hdf5Filter::kDeflate:
        owned = MR_TRY(Inflate(bytes, plain_bytes));
        bytes = owned.span();
        break;
      case Hdf5Filter::kShuffle: {
        Buffer plain = Unshuffle(bytes, static_cast<std::size_t>(dataset.element_bytes));
        owned = std::move(plain);
        bytes = owned.span();
        break;
      }
      case Hdf5Filter::kFletcher32: {
        if (bytes.size() < kChecksumBytes) return Fail(Code::kCorrupt, "a chunk has no checksum");
        const std::uint32_t checksum = LoadLittle<std::uint32_t>(bytes.data() + bytes.size() - kChecksumBytes);
        bytes = bytes.first(bytes.size() - kChecksumBytes);
        if (!ChecksumsMatch(Fletcher32(bytes), checksum))
          return Fail(Code::kCorrupt, "the checksum of a chunk is wrong");
        break;
      }
    }
  }
  if (bytes.size() != dataset.DecodedBytes(i)) return Fail(Code::kCorrupt, "a chunk does not have its elements");
  if (bytes.data() == owned.data() && bytes.size() == owned.size()) return owned;
  Buffer copy(bytes.size());
  std::ranges::copy(bytes, copy.data());
  return copy;
}

}  // namespace millrace::data
