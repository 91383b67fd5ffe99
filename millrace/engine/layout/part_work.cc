#include "millrace/engine/layout/part_work.h"

namespace millrace::engine {

PartWork WorkOfParts(const PartSizes& sizes, const ParallelOptions& options) {
  constexpr double kForward = 2, kBackward = 4, kAttentionForward = 4, kAttentionBackward = 10;
  const double forwards =
      options.recompute == Recompute::kFull ? 1 + 1.0 / static_cast<double>(options.recompute_every) : 1;
  const auto elements = static_cast<double>(sizes.block_elements);
  const double keys = sizes.attended_length / (sizes.causal ? 2 : 1);  // that a query sees
  const double pairs = static_cast<double>(sizes.query_channels) * keys;
  return {.block = forwards * (kForward * elements + kAttentionForward * pairs) + kBackward * elements +
                   kAttentionBackward * pairs,
          .head = (kForward + kBackward) * static_cast<double>(sizes.head_elements) * sizes.predicted};
}

}  // namespace millrace::engine
