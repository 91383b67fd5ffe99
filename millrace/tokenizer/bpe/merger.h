// The loop of byte pair encoding: merges neighbouring symbols, the best pair first.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "millrace/tokenizer/tables/merge_table.h"

namespace millrace::tokenizer {

/// Merges neighbouring symbols until no pair merges any more. Each step merges the pair of the lowest rank, and the
/// leftmost of equal ones. Keeps its memory for the next call. One thread at a time.
class Merger {
 public:
  /// Merges in place and returns the beginning of `symbols`, which holds the result. Takes O(n log n) time at worst,
  /// and nearly O(n) if few distinct ranks occur. Below kLong symbols it takes quadratic time, which is faster there.
  std::span<const Symbol> Run(const MergeTable& table, std::span<Symbol> symbols);

 private:
  static constexpr std::size_t kLong = 64;  ///< a guess
  static constexpr std::uint32_t kNowhere = UINT32_MAX;
  static constexpr Symbol kNoSymbol = INT32_MIN;

  struct Node {
    Symbol symbol;
    std::uint32_t previous, next;  ///< kNowhere at the ends
    MergeTable::Merge merge;       ///< with the next node; kNoRank also for a node that is gone
  };
  struct QueuedPosition {
    std::uint32_t position, next;
  };
  using UrgentMerge = std::pair<std::uint32_t, std::uint32_t>;  // rank, position

  std::size_t RunShort(const MergeTable& table, std::span<Symbol> symbols);
  std::size_t RunLong(const MergeTable& table, std::span<Symbol> symbols);
  /// As MergeTable::Find(), but remembers the last pair, because long texts repeat pairs.
  const MergeTable::Merge& FindCached(const MergeTable& table, Symbol left, Symbol right) {
    if (left != last_left_ || right != last_right_) {
      last_left_ = left;
      last_right_ = right;
      last_ = table.Find(left, right);
    }
    return last_;
  }
  void Enqueue(std::uint32_t rank, std::uint32_t position);
  void TakePositions(std::uint32_t rank);
  void MergeAt(const MergeTable& table, std::uint32_t position, std::uint32_t current_rank);
  void EnqueuePair(const MergeTable& table, std::uint32_t position, std::uint32_t current_rank);

  // For long texts: a list of positions for each rank, all lists in one arena; a heap of the ranks with positions; the
  // sorted positions of the current rank; and a heap of merges that became possible meanwhile and come before the rest.
  std::vector<Node> nodes_;
  std::vector<std::uint32_t> queue_heads_;
  std::vector<QueuedPosition> queued_;
  std::vector<std::uint32_t> ranks_;
  std::vector<std::uint32_t> positions_;
  std::vector<UrgentMerge> urgent_;
  Symbol last_left_ = kNoSymbol, last_right_ = kNoSymbol;
  MergeTable::Merge last_;
};

}  // namespace millrace::tokenizer
