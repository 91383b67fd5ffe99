#include "millrace/checkpoint/commit/retention.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace millrace::checkpoint {

std::set<std::uint64_t> Retained(const std::set<std::uint64_t>& committed, const Retention& retention,
                                 const std::map<std::uint64_t, double>& metric) {
  std::set<std::uint64_t> kept;
  int newest = std::max(retention.keep_last, 1);
  for (auto step = committed.rbegin(); step != committed.rend() && newest > 0; ++step, --newest) kept.insert(*step);
  if (retention.keep_every > 0) {
    for (std::uint64_t step : committed)
      if (step % retention.keep_every == 0) kept.insert(step);
  }
  std::vector<std::pair<double, std::uint64_t>> ranked;  // ascending; of equal values the newest step last
  for (const auto& [step, value] : metric)
    if (committed.contains(step)) ranked.emplace_back(retention.greatest ? value : -value, step);
  std::sort(ranked.rbegin(), ranked.rend());
  for (std::size_t i = 0; i < ranked.size() && std::cmp_less(i, retention.keep_best); ++i)
    kept.insert(ranked[i].second);
  return kept;
}

}  // namespace millrace::checkpoint
