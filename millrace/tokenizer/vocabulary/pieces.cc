#include "millrace/tokenizer/vocabulary/pieces.h"

#include <bit>
#include <functional>

namespace millrace::tokenizer {

PieceIndex::PieceIndex(const Pieces& pieces, std::size_t expected)
    : pieces_(&pieces), mask_(std::bit_ceil(2 * expected + 2) - 1), slots_(mask_ + 1) {}

bool PieceIndex::Insert(TokenId id) {
  std::string_view piece = (*pieces_)[id];
  std::size_t hash = std::hash<std::string_view>{}(piece);
  auto tag = static_cast<std::uint32_t>(hash >> 32);
  for (std::size_t at = hash & mask_;; at = (at + 1) & mask_) {
    Slot& slot = slots_[at];
    if (slot.id == kNoToken) {
      slot = {tag, id};
      return true;
    }
    if (slot.tag == tag && (*pieces_)[slot.id] == piece) return false;
  }
}

TokenId PieceIndex::Find(std::string_view piece) const {
  if (slots_.empty()) return kNoToken;
  std::size_t hash = std::hash<std::string_view>{}(piece);
  auto tag = static_cast<std::uint32_t>(hash >> 32);
  for (std::size_t at = hash & mask_;; at = (at + 1) & mask_) {
    const Slot& slot = slots_[at];
    if (slot.id == kNoToken) return kNoToken;
    if (slot.tag == tag && (*pieces_)[slot.id] == piece) return slot.id;
  }
}

}  // namespace millrace::tokenizer
