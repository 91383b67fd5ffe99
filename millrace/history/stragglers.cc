#include "millrace/history/stragglers.h"

#include <algorithm>

namespace millrace::history {
namespace {

double OwnTime(const RankFigures& rank) { return std::max(0.0, rank.times.step - rank.times.comm_wait); }

/// REQUIRES: `values` is not empty.
double MedianOf(std::vector<double> values) {
  std::ranges::sort(values);
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

}  // namespace

std::vector<double> FindSlowness(std::span<const RankFigures> ranks) {
  std::vector<double> slowness(ranks.size(), 1);
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    std::vector<double> peers;
    for (std::size_t j = 0; j < ranks.size(); ++j) {
      if (j != i && ranks[j].stage == ranks[i].stage) peers.push_back(OwnTime(ranks[j]));
    }
    if (peers.empty()) continue;
    const double median = MedianOf(std::move(peers));
    if (median > 0) slowness[i] = OwnTime(ranks[i]) / median;
  }
  return slowness;
}

std::vector<int> StragglerDetector::Observe(std::span<RankFigures> ranks, std::uint64_t steps) {
  watched_.resize(ranks.size());
  const std::vector<double> slowness = FindSlowness(ranks);
  std::vector<int> found;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    Watched& watched = watched_[i];
    if (slowness[i] >= kSlow) {
      watched.steps += steps;
      ++watched.reports;
    } else if (!watched.straggles || slowness[i] < kRecovered) {
      watched = {};
    }
    if (!watched.straggles && watched.steps >= kSteps && watched.reports >= kReports) {
      watched.straggles = true;
      found.push_back(static_cast<int>(i));
    }
    ranks[i].slowness = slowness[i];
    ranks[i].straggles = watched.straggles;
  }
  return found;
}

}  // namespace millrace::history
