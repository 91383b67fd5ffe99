// A large buffer of memory pages.
#pragma once

#include <cstddef>
#include <cstdint>

#include "millrace/base/bytes.h"
#include "millrace/base/result.h"

namespace millrace::checkpoint {

/// Memory straight from the system, huge pages where it grants them. Growing forgets the content.
class PageBuffer {
 public:
  PageBuffer() = default;
  PageBuffer(const PageBuffer&) = delete;
  PageBuffer& operator=(const PageBuffer&) = delete;
  ~PageBuffer() { Free(); }
  Status Grow(std::uint64_t size);
  void Free();
  /// Writes to every page, so that nobody has to wait for the system to find them later.
  void Touch();
  MutableByteSpan span() { return {data_, size_}; }

 private:
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace millrace::checkpoint
