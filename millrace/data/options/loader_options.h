// Which batches a loader makes, and with how many threads.
#pragma once

#include <cstdint>
#include <functional>

namespace millrace::data {

class StageTrace;

/// Plain data. Loader::Start checks it.
struct LoaderOptions {
  int rank = 0, ranks = 1;
  int global_batch = 8;      ///< sequences of all ranks; divisible by ranks · micro_batch
  int micro_batch = 1;       ///< rows of each Batch that Next returns
  int prefetch_batches = 8;  ///< finished micro-batches that may wait for the consumer
  int threads = 2;           ///< threads that tokenize
  /// Several loaders, each in its own process, can share the batches of one rank. A loader takes every stride-th batch
  /// of the rank, and the phase-th after the start is its first. The phases are 0 to stride - 1.
  int stride = 1, phase = 0;
  /// A thread calls it for each micro-batch that it has made, with the number of the micro-batch and what the thread
  /// did meanwhile. Several threads may call it at the same time. May be empty.
  std::function<void(std::uint64_t number, const StageTrace& trace)> on_made = {};
};

}  // namespace millrace::data
