// Rows of Arrow columns as lines of JSON.
#pragma once

#include <arrow/record_batch.h>

#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/result.h"
#include "millrace/data/formats/record_lines.h"

namespace millrace::data::arrow_format {

/// Appends one line for each row: a JSON object of the row's columns. Null columns are left out. Lists and structs
/// nest. Maps with string keys become objects. Dates, times and decimals become strings. Binary values that are not
/// UTF-8 become null. Strings that are not UTF-8 stay as they are, so that the line's parser rejects this one record.
/// Every buffer is checked before it is read. A row stops at the longest length of a record, because a few bytes of a
/// batch can expand to any amount of JSON (dictionaries, runs, empty lists).
/// Errors, with `what` in front: kCorrupt; kUnsupported, naming the row of the frame, if `out` is full.
Status AppendRows(const arrow::RecordBatch& batch, std::string_view what, RecordLines& out);

/// Returns the indices of those `names`, the top-level columns, that `fields` lists. All if `fields` is empty.
/// Errors: kInvalidArgument, listing `names`, if none is left.
Result<std::vector<int>> ChooseColumns(const std::vector<std::string>& names, const std::vector<std::string>& fields,
                                       std::string_view what);

}  // namespace millrace::data::arrow_format
