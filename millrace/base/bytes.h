// Spans of raw bytes, their conversions to text and integers, and a buffer of uninitialised bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string_view>
#include <type_traits>

namespace millrace {

/// Bytes that somebody else owns, to read.
using ByteSpan = std::span<const std::byte>;
/// Bytes that somebody else owns, to write.
using MutableByteSpan = std::span<std::byte>;

inline constexpr std::uint64_t kKiB = 1024;         ///< bytes of a kibibyte
inline constexpr std::uint64_t kMiB = 1024 * kKiB;  ///< bytes of a mebibyte
inline constexpr std::uint64_t kGiB = 1024 * kMiB;  ///< bytes of a gibibyte

/// Returns the bytes of a text.
inline ByteSpan AsBytes(std::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}
/// Returns bytes as a text.
inline std::string_view AsText(ByteSpan bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }
/// Returns the bytes of a text that is to be filled.
inline MutableByteSpan AsWritableBytes(std::span<char> text) {
  return {reinterpret_cast<std::byte*>(text.data()), text.size()};
}

/// Reads a little-endian value at any alignment. Millrace runs on little-endian machines only.
template <class T>
  requires std::is_trivially_copyable_v<T>
T LoadLittle(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}
/// Writes a little-endian value at any alignment.
template <class T>
  requires std::is_trivially_copyable_v<T>
void StoreLittle(std::byte* to, T value) {
  std::memcpy(to, &value, sizeof value);
}

/// Owns a buffer of uninitialised bytes. (std::vector would write zeros over memory that a read is about to fill.)
class Buffer {
 public:
  /// An empty buffer.
  Buffer() = default;
  /// Allocates `size` bytes.
  explicit Buffer(std::size_t size) : data_(size ? new std::byte[size] : nullptr), size_(size) {}

  std::byte* data() { return data_.get(); }                ///< null if empty
  const std::byte* data() const { return data_.get(); }    ///< null if empty
  std::size_t size() const { return size_; }               ///< bytes
  bool empty() const { return size_ == 0; }                ///< whether size() is 0
  MutableByteSpan span() { return {data_.get(), size_}; }  ///< all bytes
  ByteSpan span() const { return {data_.get(), size_}; }   ///< all bytes
  operator ByteSpan() const { return span(); }             ///< all bytes
  /// Lowers size() to `size`, if that is smaller. Frees no memory.
  void Shrink(std::size_t size) { size_ = size < size_ ? size : size_; }

 private:
  std::unique_ptr<std::byte[]> data_;
  std::size_t size_ = 0;
};

}  // namespace millrace
