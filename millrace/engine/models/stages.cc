#include "millrace/engine/models/stages.h"

#include "millrace/engine/layout/stage_division.h"

namespace millrace::engine {

std::vector<ModelStage> DivideModel(const ModelConfig& config, const ParallelOptions& options, std::int64_t length) {
  const std::int64_t blocks = config.sizes().num_layers;
  const PartWork work = WorkOfParts(config.Shape().Parts(length), options);
  std::vector<ModelStage> stages;
  for (const BlockRange& range :
       DivideBlocks(blocks, work.head / work.block, options.pipeline, options.virtual_stages)) {
    stages.push_back({.first = range.first, .last = range.last, .embeds = stages.empty(), .predicts = false});
  }
  stages.back().predicts = true;
  return stages;
}

std::vector<ModelStage> StagesOfRank(const ModelConfig& config, const ParallelOptions& options, std::int64_t length,
                                     int rank) {
  const std::vector<ModelStage> all = DivideModel(config, options, length);
  std::vector<ModelStage> mine;
  for (auto stage = static_cast<std::size_t>(rank); stage < all.size();
       stage += static_cast<std::size_t>(options.pipeline)) {
    mine.push_back(all[stage]);
  }
  return mine;
}

}  // namespace millrace::engine
