// Transposes matrices of any elements.
#pragma once

#include <cstdint>

#include "millrace/base/bytes.h"

namespace millrace::checkpoint {

/// Writes the transpose of a matrix [rows, columns] of elements of `width` bytes.
void Transpose(ByteSpan from, MutableByteSpan to, std::uint64_t rows, std::uint64_t columns, std::uint64_t width);

}  // namespace millrace::checkpoint
