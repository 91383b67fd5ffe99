#include "millrace/data/simulate.h"

#include <algorithm>
#include <map>

namespace millrace::data {
namespace {

/// The times at which requests end. Some run at a time, and all share one link.
class SimulatedLink {
 public:
  explicit SimulatedLink(const SimulationParameters& parameters)
      : parameters_(parameters), slots_(static_cast<std::size_t>(parameters.requests)) {}

  /// Returns when a request for `bytes` ends that starts at `earliest` or later.
  double Fetch(std::uint64_t bytes, double earliest) {
    double& slot = *std::ranges::min_element(slots_);
    double first_byte = std::max(slot, earliest) + parameters_.latency;
    free_ = std::max(free_, first_byte) + static_cast<double>(bytes) / parameters_.bandwidth;
    return slot = free_;
  }

 private:
  const SimulationParameters& parameters_;
  std::vector<double> slots_;
  double free_ = 0;  ///< when the link has carried all requests so far
};

/// The times at which there is room for more bytes. The oldest chunks are dropped, batch by batch.
class SimulatedCache {
 public:
  explicit SimulatedCache(std::uint64_t capacity) : capacity_(capacity) {}

  /// Returns when `bytes` more fit, for batch `batch`. `taken` is when the batches before were taken.
  double Take(std::uint64_t bytes, std::size_t batch, std::span<const double> taken) {
    held_ += bytes;
    by_batch_[batch] += bytes;
    double when = 0;
    while (held_ > capacity_ && by_batch_.begin()->first < batch) {
      auto oldest = by_batch_.begin();
      when = taken[oldest->first];
      held_ -= oldest->second;
      by_batch_.erase(oldest);
    }
    return last_ = std::max(last_, when);
  }

 private:
  const std::uint64_t capacity_;
  std::uint64_t held_ = 0;
  double last_ = 0;
  std::map<std::size_t, std::uint64_t> by_batch_;
};

}  // namespace

Forecast Simulate(std::span<const BatchNeeds> batches, const std::function<std::uint64_t(std::uint32_t)>& chunk_bytes,
                  const SimulationParameters& parameters) {
  Forecast forecast;
  SimulatedLink link(parameters);
  SimulatedCache cache(parameters.cache_bytes);
  std::vector<double> workers(static_cast<std::size_t>(parameters.threads)), taken;
  double free = 0;  // the consumer
  for (std::size_t b = 0; b < batches.size(); ++b) {
    double arrived = 0;
    for (std::uint32_t chunk : batches[b].chunks) {
      std::uint64_t bytes = chunk_bytes(chunk);
      arrived = std::max(arrived, link.Fetch(bytes, cache.Take(bytes, b, taken)));
    }
    double& worker = *std::ranges::min_element(workers);
    auto ring = static_cast<std::size_t>(parameters.prefetch_batches);
    double begun = std::max(worker, b >= ring ? taken[b - ring] : 0.0);
    double ready = std::max(begun, arrived);
    double made = worker = ready + static_cast<double>(batches[b].bytes) * parameters.seconds_per_byte;
    double got = std::max(free, made);
    forecast.waited += got - free;
    double on_network = std::max(0.0, std::min(got, ready) - std::max(free, begun));
    forecast.waited_on_network += on_network;
    forecast.waited_on_encoding += got - free - on_network;
    if (b == 0) forecast.first_batch = got;
    taken.push_back(got);
    free = got + parameters.step;
  }
  forecast.seconds = free;
  return forecast;
}

}  // namespace millrace::data
