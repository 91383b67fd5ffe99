// What decoding one frame may take.
#pragma once

#include <arrow/memory_pool.h>

#include <cstdint>

#include "millrace/base/bytes.h"

namespace millrace::data::arrow_format {

/// All that Arrow may hold at a time while it decodes one frame, beside the frame's lines (kMaxFrameContent).
inline constexpr std::uint64_t kMostDecodingBytes = 1 * kGiB;

/// A pool of limited size: damaged bytes ask for any amount. One thread.
class MemoryLimit {
 public:
  arrow::MemoryPool* pool() { return &pool_; }

 private:
  arrow::CappedMemoryPool pool_{arrow::system_memory_pool(), static_cast<std::int64_t>(kMostDecodingBytes)};
};

}  // namespace millrace::data::arrow_format
