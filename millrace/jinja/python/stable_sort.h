// Sorts by any comparison, even by an inconsistent one.
#pragma once

#include <algorithm>
#include <iterator>
#include <vector>

namespace millrace::jinja {

/// Sorts by merging (Knuth 1998, 5.2.4). Equal items keep their order. With values that have no order among each other,
/// such as NaN, the result is some permutation; std::sort may leave the vector's memory then.
template <class T, class Before>
void StableSort(std::vector<T>& items, Before before) {
  const std::size_t count = items.size();
  for (std::size_t width = 1; width < count; width *= 2) {
    std::vector<T> merged;
    merged.reserve(count);
    for (std::size_t begin = 0; begin < count; begin += 2 * width) {
      const auto at = [&](std::size_t place) {
        return std::make_move_iterator(items.begin() + static_cast<std::ptrdiff_t>(std::min(place, count)));
      };
      std::merge(at(begin), at(begin + width), at(begin + width), at(begin + 2 * width), std::back_inserter(merged),
                 before);
    }
    items = std::move(merged);
  }
}

}  // namespace millrace::jinja
