// Reads Parquet objects.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "millrace/data/records/content.h"

namespace millrace::data::arrow_format {

/// Returns the content of a Parquet object. A frame is a row group, several small consecutive row groups, or some rows
/// of a large one. Only the columns `fields` are read. README.md defines the state of a frame.
std::shared_ptr<const Content> MakeParquetContent(DataObject object, std::vector<std::string> fields);

}  // namespace millrace::data::arrow_format
