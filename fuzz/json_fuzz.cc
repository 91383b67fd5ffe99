// Any text is either an error or a value that prints and parses back to itself.
#include <cstdlib>

#include "millrace/base/json.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  auto value = millrace::ParseJson({reinterpret_cast<const char*>(data), size}, "fuzz");
  if (!value) return 0;
  auto again = millrace::ParseJson(millrace::DumpJson(*value), "printed");
  if (!again || *again != *value) std::abort();
  return 0;
}
