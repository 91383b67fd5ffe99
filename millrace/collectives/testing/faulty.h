// A group that fails on purpose. Its faults follow a seed, so that every failure can be repeated.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <stop_token>

#include "millrace/base/clock.h"
#include "millrace/collectives/collective.h"

namespace millrace::collectives {

/// The faults of one rank. Operations are counted from 0, in the order in which they are started, over all groups that
/// were split from the wrapped one.
struct FaultPlan {
  std::uint64_t seed = 1;
  /// Operations that start before this token fires are not counted. Nothing: all are.
  std::optional<std::stop_token> counted_from = {};
  /// Each operation starts late by a random time below this one.
  Duration most_delay{};
  /// This operation is not started, and the rank leaves its groups, as if its process had ended: this group at once,
  /// the others when it starts an operation there.
  std::optional<std::uint64_t> lost_at;
  /// This operation runs, but this rank gets kInternal and leaves its groups.
  std::optional<std::uint64_t> fails_at;
  /// The start of this operation, and of each later one, blocks until `released`. Then the rank leaves its groups.
  std::optional<std::uint64_t> hangs_at;
  std::stop_token released = {};
};

/// Wraps a rank of a group. Groups that are split from it share its plan and its count.
/// Errors, beside those of `inner`: kUnavailable for all operations after a loss or a failure.
/// Delays pass on `clock`, in Start…().
std::unique_ptr<Collective> MakeFaulty(std::unique_ptr<Collective> inner, FaultPlan plan, Clock& clock = SystemClock());

}  // namespace millrace::collectives
