// The exchanges in the passes of a step between ranks that divide gradients or parameters (ZeRO 2 and 3).
#pragma once

#include <cstdint>

#include "millrace/plan/layout_cost.h"

namespace millrace::plan {

/// Operations on whole parameter groups in a step, with their elements.
struct ShardedPasses {
  struct Count {
    std::int64_t operations = 0, elements = 0;
  };
  Count scatters;  ///< of gradients
  Count gathers;   ///< of values; with zero 3 only
};

/// Returns the operations of one rank. Follows its passes and keeps the books of engine::DataExchange: groups that the
/// next passes use are not freed, and weight gradients that are put off are scattered later.
ShardedPasses RunShardedPasses(const Layout& layout, const RankShare& share);

/// Returns the bytes of the blocks that the rank's gathered values, of `element_bytes` each, and its gradients that
/// wait to be summed have in the host's memory. Follows the choices of engine::ParameterBuffer's pool, which keeps what
/// it has taken.
std::int64_t PooledBytes(const Layout& layout, const RankShare& share, std::int64_t element_bytes);

/// Returns the gathers of forward passes of all micro-batches of a step, outside of a step, with zero 3.
ShardedPasses::Count GathersOfEvaluation(const Layout& layout, const RankShare& share);

}  // namespace millrace::plan
