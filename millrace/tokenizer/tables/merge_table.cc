#include "millrace/tokenizer/tables/merge_table.h"

#include <algorithm>

namespace millrace::tokenizer {

bool MergeTable::Add(Symbol left, Symbol right, Merge merge) {
  std::uint64_t key = Key(left, right);
  std::size_t at = Home(key);
  while (slots_[at].key != kFree && slots_[at].key != key) at = at + 1 == slots_.size() ? 0 : at + 1;
  if (slots_[at].key == key) return false;
  slots_[at] = {key, merge};
  if (static_cast<std::uint32_t>(left | right) < kFirst) {
    first_size_ = kFirst;
    first_.resize(kFirst * kFirst);
    first_[static_cast<std::size_t>(left) * kFirst + static_cast<std::size_t>(right)] = merge;
  }
  ranks_ = std::max(ranks_, merge.rank + 1);
  return true;
}

}  // namespace millrace::tokenizer
