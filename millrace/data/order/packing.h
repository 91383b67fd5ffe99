// Fits documents into rows without cutting them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace millrace::data {

/// Puts items of the given lengths into bins by best-fit decreasing: the longest item first, each into the fullest bin
/// that has room. Among equals the earlier comes first. Returns the numbers of each bin's items, ascending. No bin is
/// empty. Makes at most 11/9 of the fewest possible bins, plus 6/9 of a bin. Takes O(n log n).
/// REQUIRES: every length is at most `capacity`.
/// Part of the order of every run: the results never change.
std::vector<std::vector<std::uint32_t>> BestFitDecreasing(std::span<const std::uint32_t> lengths,
                                                          std::uint32_t capacity);

}  // namespace millrace::data
