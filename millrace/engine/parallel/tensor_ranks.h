// The ranks that divide the layers of a model between them.
#pragma once

#include <algorithm>
#include <cstdint>

#include "millrace/engine/parallel/collective.h"

namespace millrace::engine {

/// The tensor-parallel group of this rank. With `sequence_parallel`, what lies between the layers' products (norms,
/// dropout, the residual stream) is divided by tokens (Korthikanti et al. 2022); otherwise every rank has all tokens
/// there. Borrows the group.
struct TensorRanks {
  Collective* group = nullptr;  ///< null: one rank
  bool sequence_parallel = false;

  int size() const { return group != nullptr ? group->size() : 1; }
  int rank() const { return group != nullptr ? group->rank() : 0; }
  bool divides_tokens() const { return sequence_parallel && size() > 1; }

  /// A range of what the ranks divide between them.
  struct Share {
    std::int64_t first = 0, count = 0;
  };
  /// Returns this rank's share of `all`, where `repeats` consecutive ranks have the same share. If it does not divide
  /// evenly, the last ranks have less.
  /// REQUIRES: `repeats` divides size().
  Share ShareOf(std::int64_t all, int repeats = 1) const {
    const std::int64_t shares = size() / repeats, each = (all + shares - 1) / shares;
    const std::int64_t first = std::min(all, rank() / repeats * each);
    return {first, std::min(all, first + each) - first};
  }
};

}  // namespace millrace::engine
