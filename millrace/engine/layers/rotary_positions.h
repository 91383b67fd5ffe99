// Rotates the queries and keys of a model by the positions of their tokens (rotary embeddings).
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <functional>
#include <map>

#include "millrace/engine/ops/common/head_layout.h"
#include "millrace/engine/ops/common/sequences.h"
#include "millrace/engine/ops/rotary.h"

namespace millrace::engine {

/// The angles of a model's rotary embeddings. The angles may depend on the length of a token's own sequence, but not on
/// the other sequences of the batch. One thread at a time.
class RotaryPositions {
 public:
  RotaryPositions() = default;
  /// Uses the same angles for all sequences.
  explicit RotaryPositions(ops::RotaryTable table) : positions_(table.positions()), tables_{{positions_, table}} {}
  /// Uses angles that depend on the length of the sequence, of at most `positions` tokens. `group_of` maps a length to
  /// a group. All sequences of a group have the angles of `make_table(group)`, a table with at least as many positions
  /// as the sequence has tokens.
  RotaryPositions(std::int64_t positions, std::function<std::int64_t(std::int64_t length)> group_of,
                  std::function<ops::RotaryTable(std::int64_t group)> make_table)
      : positions_(positions), group_of_(std::move(group_of)), make_table_(std::move(make_table)) {}

  /// Returns whether all sequences have the same angles.
  bool same_for_all_lengths() const { return !group_of_; }

  /// Returns qkv [N, layout.columns()] with its queries and keys rotated.
  /// Throws c10::Error if a sequence is longer than the model's positions.
  at::Tensor Forward(const at::Tensor& qkv, const ops::HeadLayout& layout, const ops::Sequences& sequences) const;

 private:
  std::int64_t GroupOf(std::int64_t length) const { return group_of_ ? group_of_(length) : positions_; }
  const ops::RotaryTable& TableOf(std::int64_t group) const;

  std::int64_t positions_ = 0;
  std::function<std::int64_t(std::int64_t)> group_of_;
  std::function<ops::RotaryTable(std::int64_t)> make_table_;
  mutable std::map<std::int64_t, ops::RotaryTable> tables_;  ///< a few tables, by group
};

}  // namespace millrace::engine
