#include "millrace/data/needs.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

namespace millrace::data {
namespace {

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

}  // namespace millrace::data
