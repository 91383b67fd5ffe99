// The compressors whose objects can be read.
#pragma once

#include <cstdint>

namespace millrace::data {

enum class Compression : std::uint8_t { kNone, kGzip, kZstd };

}  // namespace millrace::data
