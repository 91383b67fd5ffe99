// Reads and writes the container of torch.save: a ZIP archive without compression. The data of every entry begin at a
// multiple of 64 bytes.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/result.h"
#include "millrace/checkpoint/convert/torch/random_bytes.h"

namespace millrace::checkpoint {

/// One file in the archive.
struct ZipEntry {
  std::string name;
  std::uint64_t header = 0;  ///< offset of its local header
  std::uint64_t size = 0;
  std::uint32_t crc32 = 0;  ///< 0 if the archive was written without checksums
};

/// The central directory of an archive. All entries lie inside the archive, and none overlaps another.
class Zip {
 public:
  /// Reads and checks the central directory, but no entry. `bytes` must outlive the Zip. Blocks.
  /// Errors: kCorrupt if the bytes are not a ZIP archive or contradict each other; kUnsupported if entries are
  /// compressed or encrypted, which torch.save never does; kResourceExhausted if the directory exceeds 256 MiB.
  static Result<Zip> Open(RandomBytes& bytes);

  const std::vector<ZipEntry>& entries() const { return entries_; }  ///< in the order of their headers
  /// Returns the entry of that name, or nullptr.
  const ZipEntry* Find(std::string_view name) const;
  /// Returns the range that DataOffset reads, for RandomBytes::WillRead.
  static object::ByteRange HeaderOf(const ZipEntry& entry);
  /// Returns the offset of the entry's data. Blocks for one small read.
  /// REQUIRES: `entry` is one of entries().
  /// Errors: kCorrupt if the local header contradicts the directory.
  Result<std::uint64_t> DataOffset(const ZipEntry& entry) const;
  /// Returns the content of a small entry. Blocks.
  /// Errors: kCorrupt if it does not match its CRC-32; kResourceExhausted if it has more than `max_bytes`.
  Result<std::string> ReadAll(const ZipEntry& entry, std::uint64_t max_bytes) const;

 private:
  explicit Zip(RandomBytes& bytes) : bytes_(&bytes) {}
  /// The content of the end records.
  struct Directory {
    std::uint64_t offset = 0, size = 0, entries = 0;
    std::uint64_t end = 0;  ///< offset of the end records; the directory must end before it
  };
  Result<Directory> FindDirectory() const;
  Result<Directory> ReadZip64(std::uint64_t locator) const;
  Status ParseDirectory(std::string_view text, const Directory& directory);
  Status CheckExtents(std::uint64_t end) const;

  RandomBytes* bytes_;
  std::uint64_t directory_ = 0;  ///< offset of the central directory
  std::vector<ZipEntry> entries_;
  std::vector<std::size_t> by_name_;  ///< indices of entries_
};

/// Returns the CRC-32 of ZIP, which is not the CRC-32C of checkpoints. `seed` is the CRC-32 of the bytes before.
std::uint32_t ZipCrc32(ByteSpan bytes, std::uint32_t seed = 0);

/// Writes an archive from front to back, in the form that torch writes. Sizes and offsets of at least `wide_from` get
/// 64-bit fields; tests set it lower than the limit of ZIP.
class ZipWriter {
 public:
  using Sink = std::function<Status(ByteSpan)>;
  explicit ZipWriter(Sink sink, std::uint64_t wide_from = 0xffffffff) : sink_(std::move(sink)), wide_from_(wide_from) {}

  /// Begins an entry. The following calls of Write must add up to `size` bytes; End ends the entry.
  Status Begin(std::string name, std::uint64_t size);
  Status Write(ByteSpan bytes);
  Status End();
  /// Writes a whole entry.
  Status Add(std::string name, std::string_view content);
  /// Writes the central directory. Returns the size of the archive.
  Result<std::uint64_t> Finish();

 private:
  Status Put(ByteSpan bytes);
  Sink sink_;
  const std::uint64_t wide_from_;
  std::uint64_t written_ = 0, left_ = 0;
  std::vector<ZipEntry> entries_;
};

}  // namespace millrace::checkpoint
