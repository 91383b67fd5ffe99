// Rotary positions of a model.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <functional>
#include <map>

#include "millrace/engine/ops/layout/head_layout.h"
#include "millrace/engine/ops/layout/sequences.h"
#include "millrace/engine/ops/rotary.h"

namespace millrace::engine {

/// Rotates queries and keys by the positions of their tokens. The angles may depend on the length of the token's own
/// sequence, so that what stands beside a sequence does not change it. One thread at a time.
class RotaryPositions {
 public:
  RotaryPositions() = default;
  /// The same angles for all sequences.
  explicit RotaryPositions(ops::RotaryTable table) : positions_(table.positions()), tables_{{positions_, table}} {}
  /// Sequences of up to `positions` tokens. Those of equal `group_of`(length) have the same angles, those of
  /// `make_table`(group_of(length)). A table has at least as many positions as the sequence is long.
  RotaryPositions(std::int64_t positions, std::function<std::int64_t(std::int64_t length)> group_of,
                  std::function<ops::RotaryTable(std::int64_t group)> make_table)
      : positions_(positions), group_of_(std::move(group_of)), make_table_(std::move(make_table)) {}

  /// Returns whether all sequences have the same angles.
  bool same_for_all_lengths() const { return !group_of_; }

  /// qkv [N, layout.columns()] → the same with queries and keys rotated.
  /// Throws c10::Error if a sequence is longer than the model's positions.
  at::Tensor Forward(const at::Tensor& qkv, const ops::HeadLayout& layout, const ops::Sequences& sequences) const;

 private:
  std::int64_t GroupOf(std::int64_t length) const { return group_of_ ? group_of_(length) : positions_; }
  const ops::RotaryTable& TableOf(std::int64_t group) const;

  std::int64_t positions_ = 0;
  std::function<std::int64_t(std::int64_t)> group_of_;
  std::function<ops::RotaryTable(std::int64_t)> make_table_;
  mutable std::map<std::int64_t, ops::RotaryTable> tables_;  ///< those in use lately, by group
};

}  // namespace millrace::engine
