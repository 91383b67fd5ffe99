// Noise that is the same under any layout of the run.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

#include "millrace/engine/ops/dropout.h"

namespace millrace::engine {

/// Noise that is added to embeddings (NEFTune: Jain et al. 2023). A default one is none.
struct EmbeddingNoise {
  double alpha = 0;
  ops::DropoutRows rows;
  std::int64_t first_token = 0;  ///< the first row of x, counted in the micro-batch: ranks may divide the tokens
  bool active() const { return alpha > 0; }
};

/// Returns x [N, columns] plus noise that is uniform in ±alpha/sqrt(row length · columns). As in transformers, the row
/// length includes padding. The numbers come from Philox 4x32-10, keyed by seed and step, at the counter (column,
/// position in the row, sample). So they do not depend on ranks, micro-batches or threads.
at::Tensor AddNoise(const at::Tensor& x, const EmbeddingNoise& noise);

}  // namespace millrace::engine
