// Decodes gzip (RFC 1952), with seek points between members and inside them.
#pragma once

#include "millrace/data/compression/decoder.h"

namespace millrace::data {

/// Seek points are the starts of members, without a state, and the starts of deflate blocks. The state of a block is a
/// byte and a zlib stream. The byte says how many bits of the byte at the seek point, its highest, belong to the block
/// (1 to 7; 0: all of them). The stream holds the last 32 KiB that were decoded before the block.
/// Members that are decoded from their start are checked against their checksum and length. Zeros after the last member
/// are padding.
Result<std::unique_ptr<Decoder>> MakeGzipDecoder(InputStream& input, const SeekPoint& start);

}  // namespace millrace::data
