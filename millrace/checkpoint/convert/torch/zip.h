// The container of torch.save: a ZIP archive whose entries are stored, not compressed, each at a multiple of 64 bytes.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/result.h"
#include "millrace/checkpoint/convert/torch/random_bytes.h"

namespace millrace::checkpoint {

struct ZipEntry {
  std::string name;
  std::uint64_t header = 0;  ///< where its local header begins
  std::uint64_t size = 0;
  std::uint32_t crc32 = 0;  ///< 0 where torch was told to leave it out
};

/// What is in an archive: its central directory, checked. No entry is read, and none lies outside or over another.
class Zip {
 public:
  /// `bytes` must outlive the Zip. kCorrupt where it is no ZIP archive or one that contradicts itself; kUnsupported
  /// where entries are compressed or encrypted, which torch never does.
  static Result<Zip> Open(RandomBytes& bytes);

  const std::vector<ZipEntry>& entries() const { return entries_; }  ///< in the order of their headers
  /// nullptr when there is none.
  const ZipEntry* Find(std::string_view name) const;
  /// What DataOffset reads.
  static object::ByteRange HeaderOf(const ZipEntry& entry);
  /// Where the bytes of one of entries() begin.
  Result<std::uint64_t> DataOffset(const ZipEntry& entry) const;
  /// A whole small entry, compared with its checksum. kResourceExhausted when it has more than `max_bytes`.
  Result<std::string> ReadAll(const ZipEntry& entry, std::uint64_t max_bytes) const;

 private:
  explicit Zip(RandomBytes& bytes) : bytes_(&bytes) {}
  struct Directory {
    std::uint64_t offset = 0, size = 0, entries = 0;
    std::uint64_t end = 0;  ///< where its end records begin
  };
  Result<Directory> FindDirectory() const;
  Result<Directory> ReadZip64(std::uint64_t locator) const;
  Status ParseDirectory(std::string_view text, const Directory& directory);
  Status CheckExtents(std::uint64_t end) const;

  RandomBytes* bytes_;
  std::uint64_t directory_ = 0;  ///< where it begins
  std::vector<ZipEntry> entries_;
  std::vector<std::size_t> by_name_;  ///< indices of entries_
};

/// The CRC-32 of ZIP and PNG (not that of checkpoints); `seed` is that of the bytes before.
std::uint32_t ZipCrc32(ByteSpan bytes, std::uint32_t seed = 0);

/// Writes an archive from front to back, as torch does. Sizes and places from `wide_from` on get 64-bit fields; what is
/// smaller than 4 GiB needs none.
class ZipWriter {
 public:
  using Sink = std::function<Status(ByteSpan)>;
  explicit ZipWriter(Sink sink, std::uint64_t wide_from = 0xffffffff) : sink_(std::move(sink)), wide_from_(wide_from) {}

  /// An entry of exactly `size` bytes, which calls of Write give; then End.
  Status Begin(std::string name, std::uint64_t size);
  Status Write(ByteSpan bytes);
  Status End();
  Status Add(std::string name, std::string_view content);
  /// The central directory. Returns the size of the archive.
  Result<std::uint64_t> Finish();

 private:
  Status Put(ByteSpan bytes);
  Sink sink_;
  const std::uint64_t wide_from_;
  std::uint64_t written_ = 0, left_ = 0;
  std::vector<ZipEntry> entries_;
};

}  // namespace millrace::checkpoint
