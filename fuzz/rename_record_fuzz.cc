// A record of a directory's rename is either refused or says the same when it is written again, and names nothing
// outside its root.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "millrace/vfs/rename/rename_record.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace millrace::vfs;
  const RenameRoot roots[] = {{.key = ""}, {.key = "p/q/"}, {.key = "one/", .other_buckets = true}};
  for (const RenameRoot& root : roots) {
    auto record = DecodeRename({reinterpret_cast<const char*>(data), size}, "fuzz", root);
    if (!record) continue;
    const auto is_inside = [](std::string_view key, std::string_view folder) {
      return key.starts_with(folder) && key.size() > folder.size() + 1 && key.ends_with('/') &&
             key.find("//") == key.npos && !key.starts_with("../") && key.find("/../") == key.npos &&
             key.find(".millrace/") != 0 && key.find("/.millrace/") == key.npos && key.front() != '/';
    };
    if (!is_inside(record->from, root.key) || !is_inside(record->to, root.other_buckets ? "" : root.key)) std::abort();
    if (record->from.starts_with(record->to) || record->to.starts_with(record->from)) std::abort();
    auto again = DecodeRename(EncodeRename(*record, root), "again", root);
    if (!again || *again != *record) std::abort();
  }
  return 0;
}
