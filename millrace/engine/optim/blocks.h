// Splits a pass over the buffers among threads.
#pragma once

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdint>

namespace millrace::engine {

/// Elements that a thread takes at a time. Sums are added block by block, so a change changes results.
inline constexpr std::int64_t kOptimizerBlock = 65'536;

/// Calls work(first element, elements) for each block of `size` elements. Threads share the blocks.
template <class Work>
void ForBlocks(std::int64_t size, Work&& work) {
  const std::int64_t blocks = (size + kOptimizerBlock - 1) / kOptimizerBlock;
  at::parallel_for(0, blocks, 1, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t block = first; block < last; ++block) {
      const std::int64_t from = block * kOptimizerBlock;
      work(from, std::min(kOptimizerBlock, size - from));
    }
  });
}

}  // namespace millrace::engine
