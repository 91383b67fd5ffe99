#include "millrace/tokenizer/scratch.h"

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
  // What one huge stretch of text took is not kept.
  constexpr std::size_t kMaxSymbols = 1u << 18, kMaxText = 1u << 22;
  if (scratch->symbols.capacity() > kMaxSymbols) {
    scratch->symbols = {};
    scratch->merger = {};
  }
  if (scratch->path.capacity() > kMaxSymbols) scratch->path = {};
  if (scratch->text.capacity() > kMaxText) scratch->text = {};
  MutexLock lock(mutex_);
  if (free_.size() < kMaxKept) free_.push_back(std::move(scratch));
}

}  // namespace millrace::tokenizer
