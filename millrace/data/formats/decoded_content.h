// Content of objects that are a stream of bytes, compressed or not: JSON, lines, text and tar.
#pragma once

#include <memory>

#include "millrace/data/formats/format.h"
#include "millrace/data/records/content.h"

namespace millrace::data {

/// A frame ends at the first end of a record behind a seek point that is at least this far, in decoded bytes, from the
/// seek point where the frame starts.
inline constexpr std::uint64_t kFrameTarget = 4 * kMiB;

/// Returns content whose frames start at seek points of the format's decoder. The state of a frame is the length of its
/// records and their crc32c, both little-endian u32, and the state of the seek point. Frame::skip is the distance from
/// the seek point to the first record. ReadFrame fails with kCorrupt if a frame decodes to other bytes than it did when
/// it was found. FindFrames reads and decodes the object once. Copies what it needs of `object`.
std::shared_ptr<const Content> MakeDecodedContent(const DataObject& object, const DataFormat& format);

}  // namespace millrace::data
