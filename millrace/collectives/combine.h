// The arithmetic of reductions: sums, maxima and means over several ranks' elements.
#pragma once

#include <cstdint>
#include <span>

#include "millrace/collectives/collective.h"

namespace millrace::collectives {

/// Writes to `out` the combination of `count` elements of every source. Each element is combined in the order of the
/// sources, so that the result has the same bits wherever it is computed and however elements are cut into calls.
/// A mean is the sum divided by the number of sources. With kAddSum, `out` is one more addend, the last one. Sums and
/// means of bfloat16 add in float and round once. Sums of integers wrap. A maximum with a NaN is NaN. REQUIRES: at
/// least one source; `type` is kFloat32, kBFloat16, kFloat64, kInt64, kInt32 or kUint8, for a mean one of the first
/// three. `out` may be one of the sources, and does not overlap others.
void Combine(ElementType type, Reduction reduction, void* out, std::span<const void* const> sources,
             std::int64_t count);

}  // namespace millrace::collectives
