// Splits a pass over the buffers among threads.
#pragma once

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace millrace::engine {

/// Elements that a thread takes at a time. Sums are added block by block, so a change changes results.
inline constexpr std::int64_t kOptimizerBlock = 65'536;

/// The blocks of several runs of elements. Threads share the blocks of all runs, because many runs are smaller than one
/// block.
class RunBlocks {
 public:
  struct Block {
    std::size_t run;
    std::int64_t from, count;  ///< elements of the run
  };

  /// Adds the blocks of the next run.
  void Add(std::int64_t elements) {
    for (std::int64_t from = 0; from < elements; from += kOptimizerBlock) {
      blocks_.push_back({runs_, from, std::min(kOptimizerBlock, elements - from)});
    }
    ++runs_;
  }
  /// Returns the blocks in the order of runs.
  const std::vector<Block>& all() const { return blocks_; }
  /// Calls work(number of the block) for each block.
  template <class Work>
  void ForEach(const Work& work) const {
    at::parallel_for(0, static_cast<std::int64_t>(blocks_.size()), 1, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t i = first; i < last; ++i) work(static_cast<std::size_t>(i));
    });
  }

 private:
  std::vector<Block> blocks_;
  std::size_t runs_ = 0;
};

/// Returns the blocks of runs, which have a size().
template <class Run>
RunBlocks BlocksOf(const std::vector<Run>& runs) {
  RunBlocks blocks;
  for (const Run& run : runs) blocks.Add(run.size());
  return blocks;
}

}  // namespace millrace::engine
