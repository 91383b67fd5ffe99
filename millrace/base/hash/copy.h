// Copies of many bytes that nobody reads again soon.
#pragma once

#include "millrace/base/bytes.h"

namespace millrace {

/// memcpy of `from` to `to`, which has as many bytes and is another place, without what is written coming into the
/// caches, where it would push out what the machine works with; and memory that is only written need not be read first.
/// For bytes that are needed again at once, or that are few, memcpy is faster.
void CopyPastCaches(std::byte* to, ByteSpan from);

}  // namespace millrace
