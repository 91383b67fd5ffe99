// memcpy with non-temporal stores, for large copies that are not read again soon.
#pragma once

#include "millrace/base/bytes.h"

namespace millrace {

/// Copies `from` to `to` with stores that bypass the processor's caches. The copy does not evict other data from the
/// caches, and the processor does not read the destination's cache lines first. memcpy is faster for small copies and
/// for bytes that are needed again at once.
/// REQUIRES: `to` has room for from.size() bytes; the two ranges do not overlap.
void CopyNonTemporal(std::byte* to, ByteSpan from);

}  // namespace millrace
