// Sets of byte ranges.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

namespace millrace::vfs {

/// [begin, end)
struct Interval {
  std::uint64_t begin = 0, end = 0;
  std::uint64_t size() const { return end - begin; }
  bool operator==(const Interval&) const = default;
};

/// A set of bytes of a file, as disjoint intervals that do not touch. Operations take logarithmic time in the number of
/// intervals, plus linear time in the intervals that they remove or return. Not thread-safe.
class IntervalSet {
 public:
  static constexpr std::uint64_t kEnd = ~0ULL;

  void Add(std::uint64_t begin, std::uint64_t end);
  void Remove(std::uint64_t begin, std::uint64_t end);
  void Clear();

  bool empty() const { return intervals_.empty(); }
  std::uint64_t bytes() const { return bytes_; }
  std::uint64_t BytesIn(std::uint64_t begin, std::uint64_t end) const;
  bool Covers(std::uint64_t begin, std::uint64_t end) const;
  bool Intersects(std::uint64_t begin, std::uint64_t end) const { return First(begin, end).has_value(); }
  /// Returns the first interval of the set within [begin, end).
  std::optional<Interval> First(std::uint64_t begin, std::uint64_t end) const;
  /// Returns the intervals of the set within [begin, end), in order.
  std::vector<Interval> In(std::uint64_t begin, std::uint64_t end) const;
  /// Returns the intervals within [begin, end) that are not in the set, in order.
  std::vector<Interval> Gaps(std::uint64_t begin, std::uint64_t end) const;
  std::vector<Interval> All() const { return In(0, kEnd); }

 private:
  std::map<std::uint64_t, std::uint64_t> intervals_;  ///< begin → end
  std::uint64_t bytes_ = 0;
};

}  // namespace millrace::vfs
