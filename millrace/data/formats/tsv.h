// Fields between tabs, one record a line, as the tasks of GLUE are published (SST-2 and others). The first line has the
// names of the fields. There are no quotes: a quotation mark is part of a field.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "millrace/data/compression/compression.h"
#include "millrace/data/content/data_object.h"
#include "millrace/data/formats/record_lines.h"

namespace millrace::data {

/// Makes JSON of lines. Immutable.
class TsvColumns {
 public:
  /// `header` is the first line, without its end.
  explicit TsvColumns(const std::string& header);
  /// Appends an object with the line's fields as strings. A line with another number of fields than the header has
  /// becomes an object without fields, which is a broken record.
  void Append(std::string_view line, RecordLines& lines) const;

 private:
  std::vector<std::string> openings_;  ///< the JSON in front of each value
};

/// Returns the first line of an object, without its end and without a byte order mark. Blocks.
/// Errors: kUnsupported if the line is longer than 16 KiB; those of ReadRange and of decoders.
Result<std::string> ReadTsvHeader(const DataObject& object, Compression compression, object::Call call);

}  // namespace millrace::data
