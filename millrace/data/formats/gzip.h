// gzip (RFC 1952), with entries between members and inside of them.
#pragma once

#include "millrace/data/formats/decoder.h"

namespace millrace::data {

/// Entries are the starts of members (no state) and of deflate blocks. The state of the latter is how many bits of the
/// entry's first byte, its highest, the block begins with (a byte: 1…7, or 0 for all of them), and the last 32 KiB
/// decoded before it, as zlib compresses them. The checksum and length of every member that is decoded from its start
/// are checked. Zeros after the last member are padding.
Result<std::unique_ptr<Decoder>> MakeGzipDecoder(Input& input, const Entry& entry);

}  // namespace millrace::data
