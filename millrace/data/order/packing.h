// Fitting documents into rows without cutting them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace millrace::data {

/// Puts items of the given lengths (each at most `capacity`) into as few bins as best-fit decreasing makes: the longest
/// first (of equals the earlier), each into the fullest bin that has room (of equals the earlier). At most 11/9 of the
/// fewest possible, and 6/9 of a bin more. Yields the numbers of each bin's items, ascending; no bin is empty.
/// O(n log n). Part of the order of every run: never changes.
std::vector<std::vector<std::uint32_t>> BestFitDecreasing(std::span<const std::uint32_t> lengths,
                                                          std::uint32_t capacity);

}  // namespace millrace::data
