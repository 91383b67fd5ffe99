#include "millrace/engine/layout/stage_division.h"

#include <algorithm>
#include <cmath>

namespace millrace::engine {

std::vector<BlockRange> DivideBlocks(std::int64_t blocks, double head, std::int64_t count) {
  const double share = (static_cast<double>(blocks) + head) / static_cast<double>(count);
  std::vector<BlockRange> stages;
  std::int64_t first = 0;
  for (std::int64_t stage = 0; stage < count; ++stage) {
    // What the stages before this one, and this one, should have together.
    const auto ideal = static_cast<std::int64_t>(std::llround(share * static_cast<double>(stage + 1)));
    const std::int64_t most = std::max(first, blocks - (count - 1 - stage));  // one for each stage behind
    const std::int64_t least = std::min({blocks, first + 1, most});
    const std::int64_t last = stage + 1 == count ? blocks : std::clamp(ideal, least, most);
    stages.push_back({first, last});
    first = last;
  }
  return stages;
}

}  // namespace millrace::engine
