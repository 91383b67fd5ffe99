// Defines the library's only symbol.
#include "millrace/data/arrow/ipc_content.h"
#include "millrace/data/arrow/parquet_content.h"
#include "millrace/data/records/arrow_plugin.h"

namespace millrace::data {
namespace {

Result<std::shared_ptr<const Content>> Open(DataObject object, ArrowFormat format, std::vector<std::string> fields) {
  return format == ArrowFormat::kParquet ? arrow_format::MakeParquetContent(std::move(object), std::move(fields))
                                         : arrow_format::MakeIpcContent(std::move(object), std::move(fields));
}

constexpr ArrowPlugin kPlugin{.open = &Open};

}  // namespace

extern "C" __attribute__((visibility("default"))) const ArrowPlugin* millrace_arrow_plugin_2() { return &kPlugin; }

}  // namespace millrace::data
