// Reads a range of a buffer that is compressed as one stream.
#pragma once

#include <arrow/util/type_fwd.h>

#include <cstdint>

#include "millrace/data/records/content.h"

namespace millrace::data::arrow_format {

/// Decompresses the range `compressed` of the object, and fills `into` with the decompressed bytes from `first` on.
/// Decompresses everything in front of `first` too, about a MiB at a time. Blocks.
/// Errors: kCorrupt if the compressed bytes are damaged or end early; else those of ReadRange.
Status ReadCompressedPart(const DataObject& object, object::ByteRange compressed, arrow::Compression::type codec,
                          std::uint64_t first, MutableByteSpan into, const object::Call& call);

}  // namespace millrace::data::arrow_format
