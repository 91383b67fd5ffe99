// Metadata of a record batch that Arrow's public headers do not expose.
#pragma once

#include <arrow/util/type_fwd.h>

#include "millrace/base/bytes.h"
#include "millrace/base/result.h"

namespace millrace::data::arrow_format {

/// Returns the codec of a record batch's buffers: UNCOMPRESSED, LZ4_FRAME or ZSTD. Removes the codec from `metadata`,
/// the flatbuffer of the batch's message, so that Arrow does not decompress the buffers. Changes nothing on an error.
/// Errors: kCorrupt if `metadata` is not of a record batch; kUnsupported if the compression is not known.
Result<arrow::Compression::type> TakeCompression(MutableByteSpan metadata);

}  // namespace millrace::data::arrow_format
