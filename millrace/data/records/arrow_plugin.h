// Opens Arrow and Parquet objects as contents. Arrow is large, and most programs do not need it. So the code that
// reads these formats (data/arrow/) is a library of its own, libmillrace_arrow.so. The first such object loads it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "millrace/base/result.h"
#include "millrace/data/records/content.h"

namespace millrace::data {

enum class ArrowFormat {
  kIpc,      ///< a stream or a file ("Feather"), as in caches of Hugging Face's datasets
  kParquet,  ///< with columns compressed by any of Parquet's codecs that the library was built with
};

/// Returns the content of `object`: one line of JSON for each row, with the columns `fields` (all if empty). Nulls are
/// left out. The first call in a process loads the library.
/// Errors: kUnsupported, saying what to do, if the library is missing.
Result<std::shared_ptr<const Content>> OpenArrowContent(DataObject object, ArrowFormat format,
                                                        std::vector<std::string> fields);

/// The functions of the library.
struct ArrowPlugin {
  Result<std::shared_ptr<const Content>> (*open)(DataObject object, ArrowFormat format,
                                                 std::vector<std::string> fields);
};
/// The library's only symbol, a function () → const ArrowPlugin*. Its number must change with the types above, so that
/// a program does not load a library of another version.
inline constexpr char kArrowPluginSymbol[] = "millrace_arrow_plugin_2";
inline constexpr char kArrowPluginFile[] = "libmillrace_arrow.so";

}  // namespace millrace::data
