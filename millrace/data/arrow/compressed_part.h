// A stretch of a buffer that is compressed as a whole.
#pragma once

#include <arrow/util/type_fwd.h>

#include <cstdint>

#include "millrace/data/content/content.h"

namespace millrace::data::arrow_format {

/// Fills `into` with the bytes from `first` on of what `compressed`, a range of the object, stands for. Reads and
/// undoes all that is in front of them, holding a little of it at a time. Fails with kCorrupt where that is damaged or
/// ends early; other errors as ReadRange's. Blocks.
Status ReadCompressedPart(const DataObject& object, object::ByteRange compressed, arrow::Compression::type codec,
                          std::uint64_t first, MutableByteSpan into, const object::Call& call);

}  // namespace millrace::data::arrow_format
