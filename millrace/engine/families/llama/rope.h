// Rotary positions of a Llama, from what its configuration says of them.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "millrace/engine/families/llama/rope_config.h"
#include "millrace/engine/layers/rotary_positions.h"

namespace millrace::engine {

/// Returns the angle per position of each pair of a head's dimensions, for sequences of `length` tokens.
std::vector<float> RopeFrequencies(const RopeScaling& scaling, const RopeSizes& sizes, std::int64_t length);

/// Returns the rotary positions of a model. REQUIRES: CheckRopeScaling() succeeds.
RotaryPositions MakeRotaryPositions(const RopeScaling& scaling, const RopeSizes& sizes, ops::RotaryPairs pairs,
                                    at::Device device);

}  // namespace millrace::engine
