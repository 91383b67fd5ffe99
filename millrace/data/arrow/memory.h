// The memory that decoding one frame may take.
#pragma once

#include <arrow/memory_pool.h>

#include <cstdint>

#include "millrace/base/bytes.h"

namespace millrace::data::arrow_format {

/// The most memory that Arrow may hold while it decodes one frame, without the frame's lines. Four times
/// kMaxFrameContent, a guess: a frame needs room for its compressed, decompressed and Arrow forms at once.
inline constexpr std::uint64_t kMaxDecodingBytes = 1 * kGiB;

/// A pool of at most kMaxDecodingBytes, since damaged bytes can ask for any amount. One thread.
class MemoryLimit {
 public:
  arrow::MemoryPool* pool() { return &pool_; }

 private:
  arrow::CappedMemoryPool pool_{arrow::system_memory_pool(), static_cast<std::int64_t>(kMaxDecodingBytes)};
};

}  // namespace millrace::data::arrow_format
