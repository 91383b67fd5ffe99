// What a run will wait for its data, told from the plan and three figures of the place where it will run.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "millrace/data/loader.h"

namespace millrace::data {

/// What one batch of one rank is made of.
struct BatchNeeds {
  std::vector<std::uint32_t> chunks;  ///< that no batch before it needed, in the order in which they are fetched
  std::uint64_t bytes = 0;            ///< of documents that no batch before it needed
};

struct SimulatedPlace {
  double bandwidth = 1e9;                  ///< bytes a second, all requests together
  double latency = 0.01;                   ///< seconds from a request to its first byte
  double step = 0.1;                       ///< seconds that the consumer works on a batch
  double seconds_per_byte = 1e-7;          ///< of records, of one thread: parsing, tokenizing, packing
  int threads = 2;                         ///< that encode
  int requests = 16;                       ///< at a time
  int prefetch_batches = 8;                ///< finished ones that may wait
  std::uint64_t cache_bytes = 128 * kMiB;  ///< fetched and not yet done with
};

struct Forecast {
  double first_batch = 0;  ///< seconds until the consumer has it
  double seconds = 0;      ///< from the start to the end of the last batch's work
  double waited = 0;       ///< of these the consumer stood still, the wait for the first batch included
  double waited_on_network = 0, waited_on_encoding = 0;
  double stall_share() const { return seconds > 0 ? waited / seconds : 0; }
};

/// A small discrete model of Loader: requests take a latency each and share the link one after the other; a batch is
/// made by the first free thread, once its chunks are there; the consumer takes batches in order. `chunk_bytes` tells a
/// chunk's size.
Forecast Simulate(std::span<const BatchNeeds> batches, const std::function<std::uint64_t(std::uint32_t)>& chunk_bytes,
                  const SimulatedPlace& place);

}  // namespace millrace::data
