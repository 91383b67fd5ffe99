#include "millrace/engine/models/stages.h"

#include <algorithm>
#include <cmath>

namespace millrace::engine {

std::vector<ModelStage> DivideModel(const ModelConfig& config, std::int64_t count) {
  const std::int64_t blocks = config.sizes().num_layers;
  if (count == 1) return {{.first = 0, .last = blocks}};
  const std::vector<std::int64_t> work = config.MultipliedParameters();
  // The head counts as so many blocks. Each stage but the last has at least one block where there are enough.
  const double block = static_cast<double>(std::max<std::int64_t>(1, work[1]));
  const double head = static_cast<double>(work.back()) / block;
  const double share = (static_cast<double>(blocks) + head) / static_cast<double>(count);
  std::vector<ModelStage> stages;
  std::int64_t first = 0;
  for (std::int64_t stage = 0; stage < count; ++stage) {
    const bool is_last = stage + 1 == count;
    // What the stages before this one, and this one, should have together.
    const auto ideal = static_cast<std::int64_t>(std::llround(share * static_cast<double>(stage + 1)));
    const std::int64_t most = std::max(first, blocks - (count - 1 - stage));  // one for each stage behind
    const std::int64_t least = std::min(blocks, first + 1);
    const std::int64_t last = is_last ? blocks : std::clamp(ideal, std::min(least, most), most);
    stages.push_back({.first = first, .last = last, .embeds = stage == 0, .predicts = is_last});
    first = last;
  }
  return stages;
}

std::vector<ModelStage> StagesOfRank(const ModelConfig& config, int rank, int ranks, int virtual_stages) {
  const std::vector<ModelStage> all = DivideModel(config, std::int64_t{ranks} * virtual_stages);
  std::vector<ModelStage> mine;
  for (std::size_t stage = rank; stage < all.size(); stage += ranks) mine.push_back(all[stage]);
  return mine;
}

}  // namespace millrace::engine
