// The interface by which the ranks of one job exchange messages.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "millrace/base/error.h"

namespace millrace::checkpoint {

/// The ranks of one job, seen from one of them. All calls are collective: every rank makes the same calls in the same
/// order. They block until the other ranks have made theirs, and fail if a rank dies. One thread at a time.
/// Implemented over the training's collectives and, in tests, over threads.
class RankExchange {
 public:
  virtual ~RankExchange() = default;
  virtual int rank() const = 0;  ///< of this process, from 0
  virtual int size() const = 0;  ///< the number of ranks
  /// Returns every rank's string in rank order on rank 0, and an empty vector on the others.
  virtual Result<std::vector<std::string>> Gather(std::string mine) = 0;
  /// Returns rank 0's string on every rank.
  virtual Result<std::string> Broadcast(std::string from_rank_0) = 0;
};

/// Returns a group of one rank.
std::unique_ptr<RankExchange> SingleRankExchange();

}  // namespace millrace::checkpoint
