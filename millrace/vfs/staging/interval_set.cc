#include "millrace/vfs/staging/interval_set.h"

#include <algorithm>

namespace millrace::vfs {

void IntervalSet::Add(std::uint64_t begin, std::uint64_t end) {
  if (begin >= end) return;
  auto at = intervals_.upper_bound(begin);
  if (at != intervals_.begin() && std::prev(at)->second >= begin) --at;  // overlaps or touches the new interval
  while (at != intervals_.end() && at->first <= end) {
    begin = std::min(begin, at->first);
    end = std::max(end, at->second);
    bytes_ -= at->second - at->first;
    at = intervals_.erase(at);
  }
  intervals_.emplace_hint(at, begin, end);
  bytes_ += end - begin;
}

void IntervalSet::Remove(std::uint64_t begin, std::uint64_t end) {
  if (begin >= end) return;
  auto at = intervals_.upper_bound(begin);
  if (at != intervals_.begin() && std::prev(at)->second > begin) --at;
  while (at != intervals_.end() && at->first < end) {
    const Interval old{at->first, at->second};
    at = intervals_.erase(at);
    bytes_ -= old.size();
    if (old.begin < begin) {
      intervals_.emplace_hint(at, old.begin, begin);
      bytes_ += begin - old.begin;
    }
    if (old.end > end) {
      at = intervals_.emplace_hint(at, end, old.end);
      bytes_ += old.end - end;
    }
  }
}

void IntervalSet::Clear() {
  intervals_.clear();
  bytes_ = 0;
}

std::optional<Interval> IntervalSet::First(std::uint64_t begin, std::uint64_t end) const {
  if (begin >= end) return std::nullopt;
  auto at = intervals_.upper_bound(begin);
  if (at != intervals_.begin() && std::prev(at)->second > begin) --at;
  if (at == intervals_.end() || at->first >= end) return std::nullopt;
  return Interval{std::max(at->first, begin), std::min(at->second, end)};
}

std::vector<Interval> IntervalSet::In(std::uint64_t begin, std::uint64_t end) const {
  std::vector<Interval> found;
  for (auto next = First(begin, end); next; next = First(next->end, end)) found.push_back(*next);
  return found;
}

std::vector<Interval> IntervalSet::Gaps(std::uint64_t begin, std::uint64_t end) const {
  std::vector<Interval> gaps;
  while (begin < end) {
    auto next = First(begin, end);
    const std::uint64_t gap_end = next ? next->begin : end;
    if (begin < gap_end) gaps.push_back({begin, gap_end});
    begin = next ? next->end : end;
  }
  return gaps;
}

std::uint64_t IntervalSet::BytesIn(std::uint64_t begin, std::uint64_t end) const {
  std::uint64_t bytes = 0;
  for (auto next = First(begin, end); next; next = First(next->end, end)) bytes += next->size();
  return bytes;
}

bool IntervalSet::Covers(std::uint64_t begin, std::uint64_t end) const {
  return begin >= end || First(begin, end) == Interval{begin, end};
}

}  // namespace millrace::vfs
