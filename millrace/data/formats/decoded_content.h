// Records inside a stream of bytes, compressed or not: what JSON lines, lines, text and tar have in common.
#pragma once

#include <memory>

#include "millrace/data/content/content.h"
#include "millrace/data/formats/format.h"

namespace millrace::data {

/// Decoded bytes of a frame before its first entry's successor is looked for. A frame is the records that start from
/// one entry of its decoder to the next one that is at least so far away.
inline constexpr std::uint64_t kFrameTarget = 4 * kMiB;

/// Content whose frames begin at entries of the format's decoder. A frame's state is the length of its records and
/// their crc32c, little-endian u32s, and the entry's state; `skip` leads from the entry to the first record. A frame
/// that decodes to other bytes than when it was found fails with kCorrupt. Finding frames reads and decodes the object
/// once. Copies what it needs of `object`.
std::shared_ptr<const Content> MakeDecodedContent(const DataObject& object, const Format& format);

}  // namespace millrace::data
