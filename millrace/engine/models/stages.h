// Divides a model into the stages of a pipeline.
#pragma once

#include <cstdint>
#include <vector>

#include "millrace/engine/config/model_config.h"
#include "millrace/engine/layout/parallel_options.h"

namespace millrace::engine {

/// Consecutive parts of a model that one rank computes: blocks [first, last), before them perhaps the embedding, behind
/// them perhaps the head.
struct ModelStage {
  std::int64_t first = 0, last = 0;  ///< blocks
  bool embeds = true;                ///< the model's first stage
  bool predicts = true;              ///< the model's last stage
  bool operator==(const ModelStage&) const = default;
};

/// Returns the stages of a model in order, `pipeline` · `virtual_stages` of them. The slowest rank has as little work
/// as possible (layout/stage_division.h), counted in floating-point operations on sequences of `length` tokens
/// (layout/part_work.h). A stage has no block only if there are fewer blocks than stages.
std::vector<ModelStage> DivideModel(const ModelConfig& config, const ParallelOptions& options, std::int64_t length);

/// Returns the stages that rank `rank` of the pipeline computes: those with the numbers rank, rank + pipeline, …
std::vector<ModelStage> StagesOfRank(const ModelConfig& config, const ParallelOptions& options, std::int64_t length,
                                     int rank);

}  // namespace millrace::engine
