#include "millrace/data/simulate.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

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

/// Finds the documents of samples that are visited in order.
class SampleWalk {
 public:
  explicit SampleWalk(const Plan& plan) : plan_(plan), streams_(plan.streams().size()) {}

  /// Calls visit(DocumentLocation) for each document of sample `index`.
  template <class Visit>
  void Documents(std::uint64_t index, Visit visit) {
    SampleLocation at = plan_.Locate(0, index);
    const PlanOptions& options = plan_.options();
    std::uint64_t unit = options.joins() ? at.sample * options.sequence_length : at.sample;
    const WindowOrder* window = &Enter(at.stream, at.pass, unit);
    auto hit = window->Find(static_cast<std::uint32_t>(unit - window->first_unit));
    if (options.best_fit) {
      WindowOrder::Item item = window->At(hit.item);
      for (DocumentLocation place : RowsOf(at.stream, item.group)[item.number]) visit(place);
      return;
    }
    visit(plan_.DocumentOf(at.stream, window->At(hit.item)));
    if (!options.joins()) return;
    std::uint32_t k = hit.item;
    for (std::uint64_t last = unit + options.sequence_length; window->first_unit + window->ends[k] <= last;) {
      if (++k == window->items()) {
        window = &Enter(at.stream, at.pass, window->first_unit + window->ends.back());
        k = 0;
      }
      visit(plan_.DocumentOf(at.stream, window->At(k)));
    }
  }

 private:
  struct StreamPosition {
    std::optional<PassOrder> pass;
    std::size_t number = 0;
    std::optional<WindowOrder> window;
    std::map<std::uint32_t, std::vector<FittedRow>> rows;  ///< of the window's groups
  };

  const WindowOrder& Enter(std::uint32_t stream, std::uint64_t pass, std::uint64_t unit) {
    StreamPosition& at = streams_[stream];
    if (!at.pass || at.pass->pass != pass) {
      at.pass = plan_.OrderOf(stream, pass);
      at.window.reset();
    }
    std::size_t number = at.pass->Find(unit);
    if (!at.window || at.number != number) {
      at.number = number;
      at.window = plan_.OrderOf(stream, *at.pass, number);
      at.rows.clear();
    }
    return *at.window;
  }

  const std::vector<FittedRow>& RowsOf(std::uint32_t stream, std::uint32_t group) {
    auto [at, fresh] = streams_[stream].rows.try_emplace(group);
    if (fresh) at->second = plan_.FitRows(stream, group);
    return at->second;
  }

  const Plan& plan_;
  std::vector<StreamPosition> streams_;
};

}  // namespace

std::vector<BatchNeeds> NeedsOf(const Plan& plan, std::uint64_t rows, std::uint64_t batches) {
  SampleWalk walk(plan);
  std::vector<BatchNeeds> needs(std::min(batches, plan.samples() / rows));
  std::map<std::uint32_t, std::vector<RecordExtent>> extents;  // by chunk, of chunks that were needed
  std::set<std::pair<std::uint32_t, std::uint32_t>> made;      // documents that were encoded: chunk, number
  for (std::uint64_t b = 0; b < needs.size(); ++b) {
    for (std::uint64_t i = b * rows; i < (b + 1) * rows; ++i) {
      walk.Documents(i, [&](DocumentLocation place) {
        auto [chunk, fresh] = extents.try_emplace(place.chunk);
        if (fresh) {
          chunk->second = plan.Extents(place.chunk);
          needs[b].chunks.push_back(place.chunk);
        }
        if (made.emplace(place.chunk, place.record).second) needs[b].bytes += chunk->second[place.record].bytes;
      });
    }
  }
  return needs;
}

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
