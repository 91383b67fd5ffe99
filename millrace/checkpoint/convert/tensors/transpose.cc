#include "millrace/checkpoint/convert/tensors/transpose.h"

#include <algorithm>
#include <cstring>

namespace millrace::checkpoint {

void Transpose(ByteSpan from, MutableByteSpan to, std::uint64_t rows, std::uint64_t columns, std::uint64_t width) {
  // Goes through tiles, so that lines of the cache are used whole. 32 rows of 32 floats: 4 KiB on each side, in the
  // first-level cache.
  constexpr std::uint64_t kTile = 32;
  for (std::uint64_t row = 0; row < rows; row += kTile) {
    for (std::uint64_t column = 0; column < columns; column += kTile) {
      for (std::uint64_t i = row; i < std::min(rows, row + kTile); ++i) {
        for (std::uint64_t j = column; j < std::min(columns, column + kTile); ++j) {
          std::memcpy(to.data() + (j * rows + i) * width, from.data() + (i * columns + j) * width, width);
        }
      }
    }
  }
}

}  // namespace millrace::checkpoint
