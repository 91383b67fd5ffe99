// The loop of byte pair encoding: merges neighbouring symbols, the best pair first.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "millrace/tokenizer/tables/merge_table.h"

namespace millrace::tokenizer {

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
