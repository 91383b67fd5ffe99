#include "millrace/tokenizer/bpe/merger.h"

#include <algorithm>
#include <cstring>
#include <functional>

namespace millrace::tokenizer {

std::span<const Symbol> Merger::Run(const MergeTable& table, std::span<Symbol> symbols) {
  std::size_t left = symbols.size();
  if (left > 1) left = left < kLong ? RunShort(table, symbols) : RunLong(table, symbols);
  return symbols.first(left);
}

std::size_t Merger::RunShort(const MergeTable& table, std::span<Symbol> symbols) {
  MergeTable::Merge merges[kLong];  // of each symbol with the next
  std::size_t count = symbols.size();
  for (std::size_t i = 0; i + 1 < count; ++i) merges[i] = table.Find(symbols[i], symbols[i + 1]);
  while (true) {
    std::size_t best = 0;
    std::uint32_t rank = kNoRank;
    for (std::size_t i = 0; i + 1 < count; ++i) {
      bool better = merges[i].rank < rank;
      rank = better ? merges[i].rank : rank;
      best = better ? i : best;
    }
    if (rank == kNoRank) return count;
    symbols[best] = merges[best].merged;
    --count;
    std::memmove(&symbols[best + 1], &symbols[best + 2], (count - best - 1) * sizeof symbols[0]);
    std::memmove(&merges[best + 1], &merges[best + 2], (count - best - 1) * sizeof merges[0]);
    if (best > 0) merges[best - 1] = table.Find(symbols[best - 1], symbols[best]);
    if (best + 1 < count) merges[best] = table.Find(symbols[best], symbols[best + 1]);
  }
}

std::size_t Merger::RunLong(const MergeTable& table, std::span<Symbol> symbols) {
  auto count = static_cast<std::uint32_t>(symbols.size());
  last_left_ = last_right_ = kNoSymbol;
  if (queue_heads_.size() < table.ranks()) queue_heads_.resize(table.ranks(), kNowhere);
  nodes_.resize(count);
  queued_.reserve(count);
  for (std::uint32_t i = 0; i < count; ++i) {
    bool last = i + 1 == count;
    MergeTable::Merge merge = last ? MergeTable::Merge() : FindCached(table, symbols[i], symbols[i + 1]);
    nodes_[i] = {symbols[i], i == 0 ? kNowhere : i - 1, last ? kNowhere : i + 1, merge};
    if (merge.rank != kNoRank) Enqueue(merge.rank, i);
  }
  while (!ranks_.empty()) {
    std::ranges::pop_heap(ranks_, std::greater());
    std::uint32_t rank = ranks_.back();
    ranks_.pop_back();
    TakePositions(rank);
    for (std::size_t i = 0; i < positions_.size() || !urgent_.empty();) {
      UrgentMerge next = i < positions_.size() ? UrgentMerge{rank, positions_[i]} : UrgentMerge{kNoRank, 0};
      if (!urgent_.empty() && urgent_.front() < next) {
        std::ranges::pop_heap(urgent_, std::greater());
        next = urgent_.back();
        urgent_.pop_back();
      } else {
        ++i;
      }
      if (nodes_[next.second].merge.rank == next.first) MergeAt(table, next.second, rank);
    }
  }
  queued_.clear();
  std::size_t left = 0;
  for (std::uint32_t at = 0; at != kNowhere; at = nodes_[at].next) symbols[left++] = nodes_[at].symbol;
  return left;
}

void Merger::Enqueue(std::uint32_t rank, std::uint32_t position) {
  std::uint32_t& first = queue_heads_[rank];
  if (first == kNowhere) {
    ranks_.push_back(rank);
    std::ranges::push_heap(ranks_, std::greater());
  }
  queued_.push_back({position, first});
  first = static_cast<std::uint32_t>(queued_.size() - 1);
}

void Merger::TakePositions(std::uint32_t rank) {
  positions_.clear();
  for (std::uint32_t at = queue_heads_[rank]; at != kNowhere; at = queued_[at].next) {
    positions_.push_back(queued_[at].position);
  }
  queue_heads_[rank] = kNowhere;
  std::ranges::reverse(positions_);
  if (!std::ranges::is_sorted(positions_)) std::ranges::sort(positions_);
}

void Merger::MergeAt(const MergeTable& table, std::uint32_t position, std::uint32_t current_rank) {
  Node& left = nodes_[position];
  Node& right = nodes_[left.next];
  left.symbol = left.merge.merged;
  left.next = right.next;
  right.merge.rank = kNoRank;
  if (left.next != kNowhere) nodes_[left.next].previous = position;
  if (left.previous != kNowhere) EnqueuePair(table, left.previous, current_rank);
  EnqueuePair(table, position, current_rank);
}

void Merger::EnqueuePair(const MergeTable& table, std::uint32_t position, std::uint32_t current_rank) {
  Node& node = nodes_[position];
  node.merge = node.next == kNowhere ? MergeTable::Merge() : FindCached(table, node.symbol, nodes_[node.next].symbol);
  std::uint32_t rank = node.merge.rank;
  if (rank == kNoRank) return;
  if (rank <= current_rank) {
    urgent_.emplace_back(rank, position);
    std::ranges::push_heap(urgent_, std::greater());
  } else {
    Enqueue(rank, position);
  }
}

}  // namespace millrace::tokenizer
