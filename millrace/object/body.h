// The bytes of an object on their way: where a Get delivers them, and where a Put takes them from.
#pragma once

#include <concepts>
#include <cstdint>
#include <optional>

#include "millrace/base/bytes.h"
#include "millrace/base/error.h"
#include "millrace/object/object_info.h"

namespace millrace::object {

/// Receives the bytes of a Get as they arrive, so that a caller who passes them on needs no buffer. The store calls it
/// from its own threads, one call at a time. A call may block on a local file, but on nothing else.
class Sink {
 public:
  virtual ~Sink() = default;
  /// The object's metadata without its size. Not every store calls it. Comes before the first Take, and again if the
  /// store retries the Get.
  virtual void Begin(const ObjectInfo& info) { (void)info; }
  /// The object's bytes from `offset` on. Calls follow each other without gaps; after a retry they start over from the
  /// first byte of the Get. An error ends the Get with that error.
  virtual Status Take(std::uint64_t offset, ByteSpan bytes) = 0;
};

/// The content of an upload that is not in memory.
class Source {
 public:
  virtual ~Source() = default;
  virtual std::uint64_t size() const = 0;  ///< bytes; never changes
  /// Fills `into` with the bytes from `offset` on. Returns the same bytes each time. May block on a local file, but on
  /// nothing else.
  virtual Status Read(std::uint64_t offset, MutableByteSpan into) = 0;
  /// Called when the connection has taken the first `end` bytes. Starts over after a retry. Not every store calls it.
  virtual void OnSent(std::uint64_t end) { (void)end; }
};

/// The content of an upload that is in memory. Borrows the bytes.
class Payload : public ByteSpan {
 public:
  /// No bytes.
  Payload() = default;
  /// Any contiguous bytes.
  template <std::convertible_to<ByteSpan> Bytes>
  Payload(const Bytes& bytes) : ByteSpan(bytes) {}  // NOLINT(google-explicit-constructor): bytes are a payload
  /// Bytes with their CRC-32C, if the caller has computed it already. The store then does not compute it again.
  Payload(ByteSpan bytes, std::uint32_t crc32c) : ByteSpan(bytes), crc32c_(crc32c) {}
  /// The CRC-32C that the caller passed.
  std::optional<std::uint32_t> crc32c() const { return crc32c_; }

 private:
  std::optional<std::uint32_t> crc32c_;
};

}  // namespace millrace::object
