// Computes the attention probabilities that dropout keeps, over raw memory of the GPU.
#pragma once

#include <cstdint>

#include "millrace/engine/ops/cuda/kernels/kernels.h"

namespace millrace::engine::cuda {

/// The probabilities of one sequence, [heads, length, length], and the random numbers that decide about them: those of
/// the CPU (DropoutSite).
struct KeptProbabilities {
  std::uint64_t key;
  std::uint32_t threshold, sample;
  float scale;
  std::int64_t first_head, heads, first_position, length;
};

/// Writes 0 or `scale` for each probability.
void FillKeptProbabilities(const KeptProbabilities& of, float* out, Stream stream);

}  // namespace millrace::engine::cuda
