// Reads the metadata of an HDF5 file: small structures all over the file, each a sequence of little-endian fields.
#pragma once

#include <cstdint>
#include <map>
#include <string_view>

#include "millrace/base/bytes.h"
#include "millrace/base/result.h"
#include "millrace/data/records/data_object.h"

namespace millrace::data {

/// The address of something that does not exist.
inline constexpr std::uint64_t kNoAddress = ~std::uint64_t{0};

/// Takes fields from the front of some bytes. Behind the end, every field is 0 and ok() is false. One thread.
class FieldCursor {
 public:
  explicit FieldCursor(ByteSpan bytes) : bytes_(bytes) {}

  std::uint8_t U8() { return static_cast<std::uint8_t>(Take(1)); }
  std::uint16_t U16() { return static_cast<std::uint16_t>(Take(2)); }
  std::uint32_t U32() { return static_cast<std::uint32_t>(Take(4)); }
  std::uint64_t U64() { return Take(8); }
  /// Returns a field of 1 to 8 bytes.
  std::uint64_t Uint(std::size_t width) { return Take(width); }
  void Skip(std::size_t bytes) { (void)Bytes(bytes); }
  /// Returns the next `count` bytes, or none and !ok() if there are fewer.
  ByteSpan Bytes(std::size_t count);
  std::size_t left() const { return bytes_.size(); }
  bool ok() const { return ok_; }

 private:
  std::uint64_t Take(std::size_t width);
  ByteSpan bytes_;
  bool ok_ = true;
};

/// Reads ranges of an object in pages, which it keeps. One thread. The object must outlive it.
class MetadataReader {
 public:
  MetadataReader(const DataObject& object, object::Call call) : object_(object), call_(std::move(call)) {}

  /// Returns the bytes at an address. Blocks.
  /// Errors: kCorrupt if the range is not in the file; kUnsupported beyond kMax bytes of pages; those of ReadRange.
  Result<Buffer> Read(std::uint64_t address, std::uint64_t bytes);
  /// Returns an error of the file: its URL and `why`.
  std::unexpected<Error> Corrupt(std::string_view why) const;
  /// Returns an error that says how to write the file so that it can be read.
  std::unexpected<Error> Unsupported(std::string_view what) const;
  std::uint64_t file_bytes() const { return object_.info.size; }

 private:
  static constexpr std::uint64_t kPageBytes = 64 * kKiB;
  /// The most metadata of a file. A guess: chunk tables of 20 GB of samples.
  static constexpr std::uint64_t kMax = 256 * kMiB;

  const DataObject& object_;
  const object::Call call_;
  std::map<std::uint64_t, Buffer> pages_;  ///< by number
};

}  // namespace millrace::data
