#include "millrace/engine/layout/stage_division.h"

#include <algorithm>
#include <limits>

namespace millrace::engine {
namespace {

/// Returns the blocks of each rank.
std::vector<std::int64_t> BlocksOfRanks(std::int64_t blocks, double head, std::int64_t ranks, std::int64_t least) {
  if (ranks == 1) return {blocks};
  const std::int64_t others = ranks - 1;
  std::int64_t of_last = least;
  double slowest = std::numeric_limits<double>::infinity();
  for (std::int64_t count = least; count <= blocks - others * least; ++count) {
    const std::int64_t of_fullest = (blocks - count + others - 1) / others;
    const double work = std::max(static_cast<double>(count) + head, static_cast<double>(of_fullest));
    if (work >= slowest) continue;
    slowest = work;
    of_last = count;
  }
  const std::int64_t rest = blocks - of_last;
  std::vector<std::int64_t> counts;
  for (std::int64_t rank = 0; rank < others; ++rank) counts.push_back(rest / others + (rank < rest % others ? 1 : 0));
  counts.push_back(of_last);
  return counts;
}

/// Returns the blocks of each stage of a rank whose last stage has a head, too.
std::vector<std::int64_t> BlocksOfStages(std::int64_t blocks, double head, std::int64_t stages, std::int64_t least) {
  std::vector<std::int64_t> counts(static_cast<std::size_t>(stages), least);
  for (std::int64_t left = blocks - stages * least; left > 0; --left) {
    // To the stage with least work, of several to the last one.
    std::size_t into = counts.size() - 1;
    double work = static_cast<double>(counts[into]) + head;
    for (std::size_t stage = into; stage-- > 0;) {
      if (static_cast<double>(counts[stage]) >= work) continue;
      into = stage;
      work = static_cast<double>(counts[stage]);
    }
    ++counts[into];
  }
  return counts;
}

}  // namespace

std::vector<BlockRange> DivideBlocks(std::int64_t blocks, double head, std::int64_t ranks,
                                     std::int64_t virtual_stages) {
  const std::int64_t least = blocks >= ranks * virtual_stages ? 1 : 0;  // blocks of a stage
  const std::vector<std::int64_t> of_ranks = BlocksOfRanks(blocks, head, ranks, least * virtual_stages);
  std::vector<std::vector<std::int64_t>> of_stages;
  for (std::size_t rank = 0; rank < of_ranks.size(); ++rank) {
    const bool predicts = rank + 1 == of_ranks.size();
    of_stages.push_back(BlocksOfStages(of_ranks[rank], predicts ? head : 0, virtual_stages, least));
  }
  std::vector<BlockRange> stages;
  std::int64_t first = 0;
  for (std::size_t stage = 0; stage < static_cast<std::size_t>(virtual_stages); ++stage) {
    for (const std::vector<std::int64_t>& rank : of_stages) {
      stages.push_back({.first = first, .last = first + rank[stage]});
      first = stages.back().last;
    }
  }
  return stages;
}

}  // namespace millrace::engine
