// The cost of a model's parts, by which the stages of a pipeline get about the same work. Arithmetic only.
#pragma once

#include <cstdint>

#include "millrace/engine/layout/parallel_options.h"

namespace millrace::engine {

/// The sizes that decide what a block and the head of a model cost.
struct PartSizes {
  std::int64_t block_elements = 0;  ///< of the matrices that a block multiplies tokens with
  std::int64_t head_elements = 0;   ///< of the head's matrices, a tied token table among them
  std::int64_t query_channels = 0;  ///< of a block's attention: heads · head_dim
  double attended_length = 0;       ///< tokens of a sequence; with windows, plan::ModelShape::AttendedLength()
  double predicted = 1;             ///< share of the tokens that reach the head
  bool causal = true;               ///< a token attends to earlier ones only; else to all
  bool operator==(const PartSizes&) const = default;
};

/// Floating-point operations of a forward and a backward pass, per token of a micro-batch.
struct PartWork {
  double block = 0, head = 0;
};

/// Returns what the parts cost. A matrix element costs 2 operations forward and 4 back. Each pair of a query and a key
/// that it sees costs 4 operations a channel forward and 10 back, because the backward pass computes the scores again
/// (Dao et al. 2022). With Recompute::kFull, blocks go forward twice; with `recompute_every`, the mean of all blocks
/// counts. The embedding looks tokens up, and the norms are bound by memory: neither counts.
PartWork WorkOfParts(const PartSizes& sizes, const ParallelOptions& options);

}  // namespace millrace::engine
