// A large buffer of memory pages.
#pragma once

#include <cstddef>
#include <cstdint>

#include "millrace/base/bytes.h"
#include "millrace/base/result.h"

namespace millrace::checkpoint {

/// Memory from mmap, in huge pages if the system grants them. Not thread-safe.
class PageBuffer {
 public:
  PageBuffer() = default;
  PageBuffer(const PageBuffer&) = delete;
  PageBuffer& operator=(const PageBuffer&) = delete;
  ~PageBuffer() { Free(); }
  /// Makes the buffer at least `size` bytes long. If it has to grow, its content is lost.
  /// Errors: kResourceExhausted if the system has no memory.
  Status Grow(std::uint64_t size);
  void Free();
  /// Writes to every page, so that later writes do not wait for page faults.
  void Touch();
  MutableByteSpan span() { return {data_, size_}; }

 private:
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace millrace::checkpoint
