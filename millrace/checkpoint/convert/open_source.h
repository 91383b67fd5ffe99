// Opening what other programs wrote, to import it.
#pragma once

#include <string_view>

#include "millrace/base/result.h"
#include "millrace/checkpoint/convert/source/format.h"
#include "millrace/checkpoint/convert/source/source.h"
#include "millrace/object/connection.h"

namespace millrace::checkpoint {

/// Finds out by the names of its files what `url` has; kNotFound where it is nothing known.
Result<Format> DetectFormat(object::Connection& connection, std::string_view url, object::Call call = {});

/// Opens what `url` has: reads headers, indexes and small entries, not the tensors' bytes. Tensors of a model are in
/// kModelGroup, of an adapter in kAdapterGroup, all others under the paths that they have in the state. Nothing of a
/// pickle is run. Blocks.
Result<Source> OpenSource(object::Connection& connection, std::string_view url, Format format, object::Call call = {});

}  // namespace millrace::checkpoint
