#include "millrace/tokenizer/vocabulary/scratch.h"

#include <utility>

namespace millrace::tokenizer {

std::unique_ptr<Scratch> ScratchPool::Take() {
  {
    MutexLock lock(mutex_);
    if (!free_.empty()) {
      auto scratch = std::move(free_.back());
      free_.pop_back();
      return scratch;
    }
  }
  return std::make_unique<Scratch>();
}

void ScratchPool::Return(std::unique_ptr<Scratch> scratch) {
  // What one huge stretch of text took is kept once if it is moderate (some 50 MB), else not at all.
  constexpr std::size_t kLarge = 1u << 18, kHuge = 1u << 20;
  MutexLock lock(mutex_);
  std::size_t largest = free_.empty() ? kHuge : kLarge;
  if (scratch->symbols.capacity() > largest) {
    scratch->symbols = {};
    scratch->merger = {};
  }
  if (scratch->path.capacity() > largest) scratch->path = {};
  if (scratch->text.capacity() > 4 * largest) scratch->text = {};
  if (free_.size() < kMaxKept) free_.push_back(std::move(scratch));
}

}  // namespace millrace::tokenizer
