// Predicts how long a run will wait for its data, from the plan and the figures of the machine that will run it: the
// chunks and bytes that each batch needs, and a simulation of reading them.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "millrace/base/bytes.h"
#include "millrace/data/order/plan.h"

namespace millrace::data {

/// The chunks that one batch of one rank needs and no earlier batch needed.
struct BatchNeeds {
  std::vector<std::uint32_t> chunks;  ///< in the order in which they are fetched
  std::uint64_t bytes = 0;            ///< of the records to encode
};

/// Returns the needs of the first `batches` batches of `rows` samples, or of all in the first epoch if it has fewer.
/// The time is proportional to the documents in the batches.
std::vector<BatchNeeds> NeedsOf(const Plan& plan, std::uint64_t rows, std::uint64_t batches);

/// The figures of the machine, its network and its store.
struct SimulationParameters {
  double bandwidth = 1e9;                  ///< bytes a second, all requests together
  double latency = 0.01;                   ///< seconds from a request to its first byte
  double step = 0.1;                       ///< seconds that the consumer works on a batch
  double seconds_per_byte = 1e-7;          ///< of one thread for a byte of records: parsing, tokenizing, packing
  int threads = 2;                         ///< threads that encode
  int requests = 16;                       ///< requests at a time
  int prefetch_batches = 8;                ///< finished ones that may wait
  std::uint64_t cache_bytes = 128 * kMiB;  ///< fetched bytes that are still needed
};

struct Forecast {
  double first_batch = 0;  ///< seconds until the consumer has the first batch
  double seconds = 0;      ///< from the start to the end of the last batch's work
  double waited = 0;       ///< seconds that the consumer waited, for the first batch too
  double waited_on_network = 0, waited_on_encoding = 0;
  double stall_share() const { return seconds > 0 ? waited / seconds : 0; }
};

/// Runs a small discrete model of Loader. A request takes a latency, and requests use the link one after the other. The
/// first free thread makes a batch once its chunks are there. The consumer takes batches in order. `chunk_bytes`
/// returns a chunk's size.
Forecast Simulate(std::span<const BatchNeeds> batches, const std::function<std::uint64_t(std::uint32_t)>& chunk_bytes,
                  const SimulationParameters& parameters);

}  // namespace millrace::data
