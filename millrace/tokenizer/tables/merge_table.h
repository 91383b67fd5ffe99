// A hash table from a pair of symbols to the symbol that they merge to.
#pragma once

#include <bit>
#include <cstdint>
#include <vector>

namespace millrace::tokenizer {

/// A unit of text while it is merged. From 0 on, a symbol that the vocabulary knows: first the tokens, then characters
/// that occur only inside tokens. Below 0, an unknown code point, as -1 - code; unknown code points never merge.
using Symbol = std::int32_t;
inline constexpr std::uint32_t kNoRank = UINT32_MAX;

/// Maps a pair of symbols to the symbol that they merge to, and to the rank of this merge. Lower ranks merge first.
/// Immutable once filled; then any thread.
class MergeTable {
 public:
  struct Merge {
    Symbol merged = 0;
    std::uint32_t rank = kNoRank;
  };

  MergeTable() : MergeTable(0) {}
  explicit MergeTable(std::size_t expected)
      : shift_(64 - std::bit_width(2 * expected + 1)), slots_(1ull << (64 - shift_)) {}

  /// Adds a merge. Returns false, and keeps the old merge, if the pair has one.
  bool Add(Symbol left, Symbol right, Merge merge);
  /// Returns the merge of a pair; its rank is kNoRank if the pair does not merge.
  Merge Find(Symbol left, Symbol right) const {
    auto both = static_cast<std::uint32_t>(left | right);
    if (both < first_size_) return first_[static_cast<std::size_t>(left) * kFirst + static_cast<std::size_t>(right)];
    if (both > INT32_MAX) return {};
    std::uint64_t key = Key(left, right);
    for (std::size_t at = Home(key);; at = at + 1 == slots_.size() ? 0 : at + 1) {
      const Slot& slot = slots_[at];
      if (slot.key == key) return slot.merge;
      if (slot.key == kFree) return {};
    }
  }
  std::uint32_t ranks() const { return ranks_; }  ///< one more than the highest rank

 private:
  static constexpr std::uint64_t kFree = UINT64_MAX;
  static constexpr std::uint32_t kFirst = 256;  // the byte-level vocabularies number their bytes first
  struct Slot {
    std::uint64_t key = kFree;
    Merge merge;
  };
  static std::uint64_t Key(Symbol left, Symbol right) {
    return static_cast<std::uint64_t>(left) << 32 | static_cast<std::uint32_t>(right);
  }
  std::size_t Home(std::uint64_t key) const {
    return static_cast<std::size_t>((key ^ key >> 29) * 0x9E3779B97F4A7C15u >> shift_);
  }

  int shift_;
  std::uint32_t ranks_ = 0;
  /// The merges of the pairs of the first symbols, by index. Byte-level merging begins with these pairs.
  std::vector<Merge> first_;
  std::uint32_t first_size_ = 0;  ///< kFirst once there is one
  std::vector<Slot> slots_;
};

}  // namespace millrace::tokenizer
