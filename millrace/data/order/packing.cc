#include "millrace/data/order/packing.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

namespace millrace::data {

std::vector<std::vector<std::uint32_t>> BestFitDecreasing(std::span<const std::uint32_t> lengths,
                                                          std::uint32_t capacity) {
  std::vector<std::uint32_t> order(lengths.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::sort(order, [&](std::uint32_t a, std::uint32_t b) {
    return lengths[a] != lengths[b] ? lengths[a] > lengths[b] : a < b;
  });
  std::vector<std::vector<std::uint32_t>> bins;
  std::set<std::pair<std::uint32_t, std::uint32_t>> room;  // left in a bin, number of the bin
  for (std::uint32_t item : order) {
    auto best = room.lower_bound({lengths[item], 0});
    std::uint32_t bin, left = capacity;
    if (best == room.end()) {
      bin = static_cast<std::uint32_t>(bins.size());
      bins.emplace_back();
    } else {
      std::tie(left, bin) = *best;
      room.erase(best);
    }
    bins[bin].push_back(item);
    room.emplace(left - lengths[item], bin);
  }
  for (auto& bin : bins) std::ranges::sort(bin);
  return bins;
}

}  // namespace millrace::data
