// Measures the network between the machines of a run, and finds slow links.
#pragma once

#include <string>
#include <vector>

#include "millrace/base/clock.h"
#include "millrace/base/result.h"
#include "millrace/engine/parallel/collective.h"

namespace millrace::train {

/// The measured rates between two machines.
struct LinkFigures {
  int first = 0, second = 0;  ///< ranks in the job, one of each machine
  double latency_s = 0;       ///< of a message, one way
  double bytes_per_s = 0;     ///< one way
};

/// The measured rates between all ranks.
struct NetworkFigures {
  std::vector<std::string> nodes;  ///< of each rank, the name of its machine
  std::vector<LinkFigures> links;  ///< empty if the ranks are on one machine
  double all_reduce_latency_s = 0, all_reduce_bytes_per_s = 0;
};

/// Measures the links between machines, and a short all-reduce over all ranks. `node` is this machine's name.
/// Collective over `world`; all ranks get the same figures. On one machine it measures nothing. Takes some 20
/// milliseconds for each machine on a network of 1 GB/s. Errors: kUnavailable if a rank is lost.
Result<NetworkFigures> MeasureNetwork(engine::Collective& world, const std::string& node, const Clock& clock);

/// Returns a sentence for each link that is slower than the others. See README.md for the limits.
std::vector<std::string> SlowLinks(const NetworkFigures& figures);

/// A machine whose links are all slower than those of the others.
struct SlowMachine {
  int rank = 0;          ///< its first rank
  std::string sentence;  ///< how slow it is, and what to do
};
/// Compares the best link of each machine with the median of the best ones. Finds nothing below three machines, where
/// nobody knows which one is slow.
std::vector<SlowMachine> SlowMachines(const NetworkFigures& figures);

}  // namespace millrace::train
