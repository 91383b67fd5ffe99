// The options of a loader: the batches that it makes, and its number of threads.
#pragma once

#include <cstdint>
#include <functional>

namespace millrace::data {

class StageTrace;

/// Plain data. Loader::Start checks it.
struct LoaderOptions {
  int rank = 0;              ///< of this loader, from 0
  int ranks = 1;             ///< that share the global batch
  int global_batch = 8;      ///< sequences of all ranks; divisible by ranks · micro_batch
  int micro_batch = 1;       ///< rows of each Batch that Next returns
  int prefetch_batches = 8;  ///< finished micro-batches that may wait for the consumer
  int threads = 2;           ///< threads that tokenize
  /// Several loaders, each in its own process, can share the batches of one rank. A loader takes every stride-th batch
  /// of the rank.
  int stride = 1;
  int phase = 0;  ///< 0 to stride - 1: the loader's first batch, counted from the start
  /// A thread calls it for each micro-batch that it has made, with the number of the micro-batch and what the thread
  /// did meanwhile. Several threads may call it at the same time. May be empty.
  std::function<void(std::uint64_t number, const StageTrace& trace)> on_made = {};
};

}  // namespace millrace::data
