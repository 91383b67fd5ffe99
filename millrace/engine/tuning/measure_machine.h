// Measures how fast this machine computes now: the figures of a machine description (docs/machines) that are rates.
#pragma once

#include <cstdint>

#include "millrace/base/clock.h"

namespace millrace::engine {

/// Rates of all threads of the caller's products together.
struct MachineRates {
  double f32 = 0;               ///< floating-point operations a second in the products that train a layer
  double bf16 = 0;              ///< the same with bfloat16 inputs
  double memory_bandwidth = 0;  ///< bytes a second that a sum of two arrays reads and writes
  double link_bandwidth = 0;    ///< bytes a second that each of two ranks of this machine sends to the other
};

/// The sizes of what is computed. The weights and arrays of the defaults do not fit into caches; together they take
/// 1.5 GB.
struct MachineSizes {
  std::int64_t tokens = 512;           ///< that go through the layer together
  std::int64_t side = 3072;            ///< of the layer's weight
  std::int64_t elements = 64LL << 20;  ///< of the arrays
  int rounds = 7;
};

/// Times these operations on the CPU, in turns: the three products of a linear layer in training, a sum of two arrays,
/// and the exchanges of two ranks that divide an array as ZeRO-3 does, an all-gather and a reduce-scatter. A rate is
/// that of the median time. The products are the output, the gradient of the input, and that of the weight, which is
/// added: on some processors, gradients are slower than outputs. Blocks for some seconds. Throws c10::Error if memory
/// runs out, ErrorException if an exchange fails.
MachineRates MeasureMachine(Clock& clock, const MachineSizes& sizes = {});

}  // namespace millrace::engine
