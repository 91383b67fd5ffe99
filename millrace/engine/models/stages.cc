#include "millrace/engine/models/stages.h"

#include <algorithm>

#include "millrace/engine/layout/stage_division.h"

namespace millrace::engine {

std::vector<ModelStage> DivideModel(const ModelConfig& config, std::int64_t count) {
  const std::int64_t blocks = config.sizes().num_layers;
  if (count == 1) return {{.first = 0, .last = blocks}};
  const std::vector<std::int64_t> work = config.MultipliedParameters();
  const double block = static_cast<double>(std::max<std::int64_t>(1, work[1]));
  std::vector<ModelStage> stages;
  for (const BlockRange& range : DivideBlocks(blocks, static_cast<double>(work.back()) / block, count)) {
    stages.push_back({.first = range.first, .last = range.last, .embeds = stages.empty(), .predicts = false});
  }
  stages.back().predicts = true;
  return stages;
}

std::vector<ModelStage> StagesOfRank(const ModelConfig& config, int rank, int ranks, int virtual_stages) {
  const std::vector<ModelStage> all = DivideModel(config, std::int64_t{ranks} * virtual_stages);
  std::vector<ModelStage> mine;
  for (std::size_t stage = rank; stage < all.size(); stage += ranks) mine.push_back(all[stage]);
  return mine;
}

}  // namespace millrace::engine
