// How a pipeline divides the blocks of a model. Arithmetic only.
#pragma once

#include <cstdint>
#include <vector>

namespace millrace::engine {

/// Blocks [first, last) of a stage.
struct BlockRange {
  std::int64_t first = 0, last = 0;
  std::int64_t count() const { return last - first; }
  bool operator==(const BlockRange&) const = default;
};

/// Divides `blocks` equal blocks into `count` stages of about the same work, in order. The last stage also has a head
/// whose work is that of `head` blocks. A stage has no block only if there are fewer blocks than stages.
/// REQUIRES: count >= 1.
std::vector<BlockRange> DivideBlocks(std::int64_t blocks, double head, std::int64_t count);

}  // namespace millrace::engine
