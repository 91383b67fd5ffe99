// The first bytes of an object, decoded, which show its format.
#pragma once

#include <cstddef>
#include <string_view>

#include "millrace/base/bytes.h"
#include "millrace/base/result.h"
#include "millrace/data/compression/compression.h"
#include "millrace/data/records/data_object.h"

namespace millrace::data {

/// Returns the first `most` decoded bytes of an object, or all if there are fewer. Blocks.
/// Errors: those of ReadRange, of decoders and of RequireUncompressed, with the object's URL.
Result<Buffer> ReadBeginning(const DataObject& object, Compression compression, std::size_t most, object::Call call);

/// Checks that the first bytes of data without compression are not those of a compressed file.
/// Errors: kUnsupported, naming the compressor and the cure.
Status RequireUncompressed(std::string_view beginning);

}  // namespace millrace::data
