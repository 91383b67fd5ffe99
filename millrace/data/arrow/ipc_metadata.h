// What Arrow's reader keeps to itself of a record batch's metadata.
#pragma once

#include <arrow/util/type_fwd.h>

#include "millrace/base/bytes.h"
#include "millrace/base/result.h"

namespace millrace::data::arrow_format {

/// How the buffers of a record batch are compressed (UNCOMPRESSED, LZ4_FRAME or ZSTD), which `metadata`, its message's
/// flatbuffer, then says no more: Arrow takes the compressed bytes for its buffers. Fails with kCorrupt on what is no
/// record batch's metadata, with kUnsupported on a way of compressing that is not known. Changes nothing if it fails.
Result<arrow::Compression::type> TakeCompression(MutableByteSpan metadata);

}  // namespace millrace::data::arrow_format
