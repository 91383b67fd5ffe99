#include "millrace/tokenizer/vocabulary/token_index.h"

#include <bit>
#include <functional>

namespace millrace::tokenizer {

TokenIndex::TokenIndex(const TokenStrings& strings, std::size_t expected)
    : strings_(&strings), mask_(std::bit_ceil(2 * expected + 2) - 1), slots_(mask_ + 1) {}

bool TokenIndex::Insert(TokenId id) {
  std::string_view token = (*strings_)[id];
  std::size_t hash = std::hash<std::string_view>{}(token);
  auto tag = static_cast<std::uint32_t>(hash >> 32);
  for (std::size_t at = hash & mask_;; at = (at + 1) & mask_) {
    Slot& slot = slots_[at];
    if (slot.id == kNoToken) {
      slot = {tag, id};
      return true;
    }
    if (slot.tag == tag && (*strings_)[slot.id] == token) return false;
  }
}

TokenId TokenIndex::Find(std::string_view token) const {
  if (slots_.empty()) return kNoToken;
  std::size_t hash = std::hash<std::string_view>{}(token);
  auto tag = static_cast<std::uint32_t>(hash >> 32);
  for (std::size_t at = hash & mask_;; at = (at + 1) & mask_) {
    const Slot& slot = slots_[at];
    if (slot.id == kNoToken) return kNoToken;
    if (slot.tag == tag && (*strings_)[slot.id] == token) return slot.id;
  }
}

}  // namespace millrace::tokenizer
