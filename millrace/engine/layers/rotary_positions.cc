#include "millrace/engine/layers/rotary_positions.h"

#include <vector>

namespace millrace::engine {
namespace {

/// Tables that are kept. All layers of a pass use the same ones, and generation needs a new one for each token.
constexpr std::size_t kTables = 8;

}  // namespace

const ops::RotaryTable& RotaryPositions::TableOf(std::int64_t group) const {
  const auto found = tables_.find(group);
  if (found != tables_.end()) return found->second;
  if (tables_.size() == kTables) tables_.clear();
  return tables_.emplace(group, make_table_(group)).first->second;
}

at::Tensor RotaryPositions::Forward(const at::Tensor& qkv, const ops::HeadLayout& layout,
                                    const ops::Sequences& sequences) const {
  TORCH_CHECK(sequences.limit() <= positions_, "positions up to ", sequences.limit(), " exceed the model's ",
              positions_);
  const auto group_of = [&](std::int64_t i) { return GroupOf(sequences.past(i) + sequences.length(i)); };
  std::vector<at::Tensor> rotated;
  for (std::int64_t first = 0, last = 0; first < sequences.count(); first = last) {
    // Consecutive sequences of the same angles are rotated together.
    const std::int64_t group = group_of(first);
    for (last = first + 1; last < sequences.count() && group_of(last) == group;) ++last;
    if (last - first == sequences.count()) return ops::Rotate(qkv, TableOf(group), layout, sequences);
    const ops::Sequences part = sequences.Slice(first, last);
    rotated.push_back(ops::Rotate(qkv.narrow(0, sequences.begin(first), part.tokens()), TableOf(group), layout, part));
  }
  return at::cat(rotated);
}

}  // namespace millrace::engine
