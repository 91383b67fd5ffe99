// Blocks of memory that are used again and again, such as those of divided weights.
#pragma once

#include <cstdint>
#include <iterator>
#include <optional>
#include <utility>
#include <vector>

namespace millrace::engine {

/// Free blocks, and the bytes of all blocks. A block serves a request of its size or of a smaller one. So few blocks
/// serve requests of different sizes, and blocks that come and go leave no holes in the heap. The planner follows the
/// same choices without memory. Memory: the owner of a block, which frees it in its destructor. One thread at a time.
template <class Memory>
class BlockPool {
 public:
  struct Block {
    std::int64_t bytes = 0;
    Memory memory = {};
  };

  /// Returns the smallest free block that has `bytes`. If all are too small, frees the largest of them, which the new
  /// block replaces, and returns one of `bytes` from `allocate`.
  template <class Allocate>
  Block Take(std::int64_t bytes, Allocate&& allocate) {
    auto best = free_.end();
    for (auto block = free_.begin(); block != free_.end(); ++block) {
      if (best == free_.end() || IsBetter(*block, *best, bytes)) best = block;
    }
    if (best != free_.end()) {
      Block taken = std::move(*best);
      free_.erase(best);
      if (taken.bytes >= bytes) return taken;
      bytes_ -= taken.bytes;
    }
    bytes_ += bytes;
    return {bytes, allocate(bytes)};
  }
  void Give(Block block) { free_.push_back(std::move(block)); }
  /// Returns the bytes of all blocks, free or not.
  std::int64_t bytes() const { return bytes_; }

 private:
  static bool IsBetter(const Block& block, const Block& than, std::int64_t bytes) {
    const bool fits = block.bytes >= bytes;
    if (fits != (than.bytes >= bytes)) return fits;
    return fits ? block.bytes < than.bytes : block.bytes > than.bytes;
  }

  std::vector<Block> free_;
  std::int64_t bytes_ = 0;
};

}  // namespace millrace::engine
