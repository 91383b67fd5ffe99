#include "millrace/data/order/blend.h"

#include <algorithm>
#include <utility>

namespace millrace::data {
namespace {

using Wide = unsigned __int128;

}  // namespace

Blend::Blend(std::vector<std::uint64_t> counts) : counts_(std::move(counts)) {
  for (std::uint64_t count : counts_) samples_ += count;
}

std::uint64_t Blend::Before(std::size_t source, std::uint64_t a) const {
  // The number of j with (2j + 1) / (2·count) < a / samples.
  return static_cast<std::uint64_t>((Wide{2} * a * counts_[source] + samples_ - 1) / (Wide{2} * samples_));
}

SourceSample Blend::At(std::uint64_t i) const {
  if (counts_.size() == 1) return {0, i};
  auto before = [this](std::uint64_t a) {
    std::uint64_t sum = 0;
    for (std::size_t s = 0; s < counts_.size(); ++s) sum += Before(s, a);
    return sum;
  };
  // Before time a / samples lie a samples, give or take half of one per source.
  std::uint64_t low = i - std::min<std::uint64_t>(i, counts_.size());
  std::uint64_t high = std::min<std::uint64_t>(samples_, i + counts_.size());
  while (high - low > 1) {
    std::uint64_t middle = low + (high - low) / 2;
    (before(middle) <= i ? low : high) = middle;
  }
  // Between low / samples and high / samples each source has at most one sample.
  std::vector<SourceSample> picks;
  std::uint64_t first = 0;
  for (std::uint32_t s = 0; s < counts_.size(); ++s) {
    std::uint64_t number = Before(s, low);
    first += number;
    if (Before(s, high) > number) picks.push_back({s, number});
  }
  auto earlier = [this](const SourceSample& a, const SourceSample& b) {
    Wide left = (Wide{2} * a.number + 1) * counts_[b.source], right = (Wide{2} * b.number + 1) * counts_[a.source];
    return left != right ? left < right : a.source < b.source;
  };
  auto wanted = picks.begin() + static_cast<std::ptrdiff_t>(i - first);
  std::nth_element(picks.begin(), wanted, picks.end(), earlier);
  return *wanted;
}

}  // namespace millrace::data
