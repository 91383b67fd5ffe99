// Zstandard (RFC 8878).
#pragma once

#include "millrace/data/formats/decoder.h"

namespace millrace::data {

/// Entries are the starts of frames; skippable frames hold nothing. Checksums of frames that have one are checked.
/// Fails with kUnsupported on frames that want a window of more than 128 MiB or a dictionary.
Result<std::unique_ptr<Decoder>> MakeZstdDecoder(Input& input, const Entry& entry);

}  // namespace millrace::data
