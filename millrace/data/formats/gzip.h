// gzip (RFC 1952), with entries between members and inside of them.
#pragma once

#include "millrace/data/formats/decoder.h"

namespace millrace::data {

/// Entries are the starts of members (no state) and of deflate blocks. The state of the latter is the number of bits
/// (0…7, a byte) that the block before leaves of the entry's first byte, and the last 32 KiB decoded before it, as zlib
/// compresses them. The checksum and length of every member that is decoded from its start are checked. Zeros after the
/// last member are padding.
Result<std::unique_ptr<Decoder>> MakeGzipDecoder(Input& input, const Entry& entry);

}  // namespace millrace::data
