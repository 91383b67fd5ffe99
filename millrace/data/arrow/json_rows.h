// Rows of Arrow columns as lines of JSON.
#pragma once

#include <arrow/record_batch.h>

#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/result.h"
#include "millrace/data/formats/record_lines.h"

namespace millrace::data::arrow_format {

/// Appends a line for each row: an object of the row's columns, without those that are null. Strings are the bytes that
/// are stored, valid or not: whoever reads the line judges it. Lists and structs nest; maps with keys of text are
/// objects; dates, decimals and the like are strings; bytes that are not text are null. Every buffer is checked before
/// it is followed. `what` names the object in errors: kCorrupt, and kUnsupported where `out` cannot hold more; then it
/// says which row of the frame that was. A few bytes of a batch may stand for any amount of JSON (dictionaries, runs,
/// lists of nothing): a row is made no further than it may be long.
Status AppendRows(const arrow::RecordBatch& batch, std::string_view what, RecordLines& out);

/// The top-level columns among `names` that `fields` asks for (all when empty). Fails with kInvalidArgument, naming
/// what there is, when there is none of them.
Result<std::vector<int>> ChooseColumns(const std::vector<std::string>& names, const std::vector<std::string>& fields,
                                       std::string_view what);

}  // namespace millrace::data::arrow_format
