// Zstandard (RFC 8878).
#pragma once

#include "millrace/data/formats/decoder.h"

namespace millrace::data {

/// Of decoded bytes between two entries inside of a frame, at least.
inline constexpr std::uint64_t kZstdEntrySpacing = 128 * kMiB;
/// The longest window that an entry's state may hold; twice the spacing then, so that states stay below 1 % of what is
/// decoded, the windows being compressed.
inline constexpr std::uint64_t kZstdLongestWindow = 8 * kMiB;

/// Entries are the starts of frames, and inside of long ones starts of blocks, `spacing` apart. Their state, after a
/// byte that says which it is:
///
///   1  what a decoder knows there: whether the frame ends with a checksum (a byte), the window's descriptor (a byte,
///   as
///      in a frame's header), and a dictionary (zstd_tables.h), compressed;
///   2  the frame's window is longer than kZstdLongestWindow: how many decoded bytes there are to pass over since the
///      start of the frame, which the entry's offset names (u64 little-endian).
///
/// Skippable frames hold nothing. Checksums are checked where a frame is decoded from its start. Fails with
/// kUnsupported on frames that want a window of more than 128 MiB or a dictionary.
Result<std::unique_ptr<Decoder>> MakeZstdDecoder(Input& input, const Entry& entry,
                                                 std::uint64_t spacing = kZstdEntrySpacing);

}  // namespace millrace::data
