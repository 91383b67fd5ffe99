// Parquet.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "millrace/data/content/content.h"

namespace millrace::data::arrow_format {

/// A frame is a row group, or several small ones in a row; of the object only the wanted columns are read. Its state:
/// i32 number of the first row group, i32 number of row groups, little-endian.
std::shared_ptr<const Content> MakeParquetContent(DataObject object, std::vector<std::string> fields);

}  // namespace millrace::data::arrow_format
