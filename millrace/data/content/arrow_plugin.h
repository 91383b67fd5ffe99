// Arrow and Parquet objects as contents. What reads them stands in a library of its own, libmillrace_arrow.so
// (data/arrow/), which is loaded when the first such object is met: Arrow is large, and most programs never need it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "millrace/base/result.h"
#include "millrace/data/content/content.h"

namespace millrace::data {

enum class ArrowFormat {
  kIpc,      ///< a stream or a file ("Feather"), as in caches of Hugging Face's datasets
  kParquet,  ///< with columns compressed by any of Parquet's codecs that the library was built with
};

/// The content of `object`: a line of JSON for each row, with the columns `fields` (all when empty); nulls are left
/// out. The first call in a process loads the library. Fails with kUnsupported where there is none, saying what to do.
Result<std::shared_ptr<const Content>> OpenArrowContent(DataObject object, ArrowFormat format,
                                                        std::vector<std::string> fields);

/// What the library gives.
struct ArrowPlugin {
  Result<std::shared_ptr<const Content>> (*open)(DataObject object, ArrowFormat format,
                                                 std::vector<std::string> fields);
};
/// The library's one symbol, a function () → const ArrowPlugin*. Its number counts changes to the types above, which
/// both sides must agree on.
inline constexpr char kArrowPluginSymbol[] = "millrace_arrow_plugin_1";
inline constexpr char kArrowPluginFile[] = "libmillrace_arrow.so";

}  // namespace millrace::data
