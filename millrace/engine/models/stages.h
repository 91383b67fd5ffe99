// How a pipeline divides a model into stages.
#pragma once

#include <cstdint>
#include <vector>

#include "millrace/engine/config/model_config.h"

namespace millrace::engine {

/// Consecutive parts of a model that one rank computes: blocks [first, last), before them perhaps the embedding, behind
/// them perhaps the head.
struct ModelStage {
  std::int64_t first = 0, last = 0;  ///< blocks
  bool embeds = true;                ///< the model's first stage
  bool predicts = true;              ///< the model's last stage
  bool operator==(const ModelStage&) const = default;
};

/// Returns the stages of a model, in order: `count` of them, with about the same work. The work of a head counts as
/// that of as many blocks as it has floating-point operations. A stage may have no block only if there are fewer blocks
/// than stages. REQUIRES: count >= 1.
std::vector<ModelStage> DivideModel(const ModelConfig& config, std::int64_t count);

/// Returns the stages that rank `rank` of a pipeline of `ranks` ranks computes: of `ranks` · `virtual_stages` stages
/// those with the numbers rank, rank + ranks, …
std::vector<ModelStage> StagesOfRank(const ModelConfig& config, int rank, int ranks, int virtual_stages);

}  // namespace millrace::engine
