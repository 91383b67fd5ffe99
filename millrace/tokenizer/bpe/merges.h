// Byte pair encoding proper: which neighbours merge, in which order, and the loop that merges them.
#pragma once

#include <bit>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace millrace::tokenizer {

/// What a text consists of while it is merged: from 0 on, what the vocabulary knows (tokens first, then characters that
/// only occur inside of tokens); below 0, a code point that it does not know, as -1 - code. Those never merge.
using Symbol = std::int32_t;
inline constexpr std::uint32_t kNoRank = UINT32_MAX;

/// (left, right) → what they become, and when: lower ranks merge first. Immutable once filled.
class MergeTable {
 public:
  struct Merge {
    Symbol merged = 0;
    std::uint32_t rank = kNoRank;
  };

  MergeTable() : MergeTable(0) {}
  explicit MergeTable(std::size_t expected)
      : shift_(64 - std::bit_width(2 * expected + 1)), slots_(1ull << (64 - shift_)) {}

  /// The first of two merges for one pair stays; false then.
  bool Add(Symbol left, Symbol right, Merge merge);
  /// rank kNoRank: they do not merge.
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
  std::uint32_t ranks() const { return ranks_; }  ///< all ranks are below

 private:
  static constexpr std::uint64_t kFree = UINT64_MAX;
  static constexpr std::uint32_t kFirst = 256;
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
  /// Pairs of the first symbols, which are bytes where every merging begins: looked up without a search.
  std::vector<Merge> first_;
  std::uint32_t first_size_ = 0;  ///< kFirst once there is one
  std::vector<Slot> slots_;
};

/// Merges the symbols of one stretch of text until nothing merges any more: always the pair of lowest rank, the
/// leftmost of several. Holds the memory that this takes, to be used again; one thread at a time.
class Merger {
 public:
  /// Works in place; the returned span is the beginning of `symbols`, good until they change. O(n log n) at worst for
  /// long stretches, nearly O(n) where few distinct ranks occur; quadratic below kLong, where that is faster.
  std::span<const Symbol> Run(const MergeTable& table, std::span<Symbol> symbols);

 private:
  static constexpr std::size_t kLong = 64;
  static constexpr std::uint32_t kNowhere = UINT32_MAX;
  static constexpr Symbol kNoSymbol = INT32_MIN;

  struct Node {
    Symbol symbol;
    std::uint32_t previous, next;  ///< kNowhere at the ends
    MergeTable::Merge merge;       ///< with the next node; kNoRank also for a node that is gone
  };
  struct Waiting {
    std::uint32_t position, next;
  };
  using Urgent = std::pair<std::uint32_t, std::uint32_t>;  // rank, position

  std::size_t RunShort(const MergeTable& table, std::span<Symbol> symbols);
  std::size_t RunLong(const MergeTable& table, std::span<Symbol> symbols);
  /// As Find, but remembers the last pair: long stretches repeat themselves.
  const MergeTable::Merge& Look(const MergeTable& table, Symbol left, Symbol right) {
    if (left != last_left_ || right != last_right_) {
      last_left_ = left;
      last_right_ = right;
      last_ = table.Find(left, right);
    }
    return last_;
  }
  void Wait(std::uint32_t rank, std::uint32_t position);
  void TakePositions(std::uint32_t rank);
  void MergeAt(const MergeTable& table, std::uint32_t position, std::uint32_t current_rank);
  void Announce(const MergeTable& table, std::uint32_t position, std::uint32_t current_rank);

  // For long stretches: the positions that wait for each rank, as lists in one arena; a heap of the ranks that have
  // any; the positions of the rank in work, in order; and a heap of what became possible meanwhile and comes before the
  // rest.
  std::vector<Node> nodes_;
  std::vector<std::uint32_t> first_waiting_;
  std::vector<Waiting> waiting_;
  std::vector<std::uint32_t> ranks_;
  std::vector<std::uint32_t> positions_;
  std::vector<Urgent> urgent_;
  Symbol last_left_ = kNoSymbol, last_right_ = kNoSymbol;
  MergeTable::Merge last_;
};

}  // namespace millrace::tokenizer
