// Decodes Zstandard (RFC 8878), with seek points between frames and inside them.
#pragma once

#include "millrace/data/compression/decoder.h"

namespace millrace::data {

/// Decoded bytes between two seek points inside a frame, at least.
/// 128 MiB: with the usual window of 2 MiB, states are 0.5 % of what is decoded (docs/formats/index.md).
inline constexpr std::uint64_t kZstdSeekPointSpacing = 128 * kMiB;
/// The longest window that the state of a seek point may hold. 8 MiB: the window of levels up to 19 without --long.
inline constexpr std::uint64_t kZstdLongestWindow = 8 * kMiB;

/// Seek points are the starts of frames, without a state, and inside long frames the starts of blocks that are at least
/// `spacing` apart. The first byte of a state says what follows:
///
///   1  What a decoder knows at the block: a byte that says whether the frame ends with a checksum; the window's
///      descriptor, as in a frame's header (a byte); a dictionary (zstd_tables.h), compressed.
///   2  The frame's window is longer than kZstdLongestWindow. The seek point's offset is the start of the frame. A
///      little-endian u64 says how many decoded bytes to discard from there.
///
/// Skippable frames are skipped. Frames that are decoded from their start are checked against their checksum.
/// Errors: kUnsupported if a frame wants a window of more than 128 MiB or a dictionary.
Result<std::unique_ptr<Decoder>> MakeZstdDecoder(InputStream& input, const SeekPoint& start,
                                                 std::uint64_t spacing = kZstdSeekPointSpacing);

}  // namespace millrace::data
