// Opening what other programs wrote, to import it.
#pragma once

#include <string_view>

#include "millrace/base/result.h"
#include "millrace/checkpoint/convert/source/foreign_format.h"
#include "millrace/checkpoint/convert/source/import_source.h"
#include "millrace/object/connection.h"

namespace millrace::checkpoint {

/// Finds out by the names of its files what `url` has; kNotFound where it is nothing known.
Result<ForeignFormat> DetectForeignFormat(object::Connection& connection, std::string_view url, object::Call call = {});

/// Opens what `url` has: reads headers, indexes and small entries, not the tensors' bytes. Tensors of a model are in
/// kModelGroup, of an adapter in kAdapterGroup, all others under the paths that they have in the state. Nothing of a
/// pickle is run. Blocks.
Result<ImportSource> OpenSource(object::Connection& connection, std::string_view url, ForeignFormat format,
                                object::Call call = {});

}  // namespace millrace::checkpoint
