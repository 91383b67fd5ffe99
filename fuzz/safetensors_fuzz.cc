// Any header is either an error or describes tensors that fill a file of its size exactly.
#include <cstdlib>

#include "millrace/base/bytes.h"
#include "millrace/checkpoint/format/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace millrace::checkpoint;
  if (size < 2) return 0;
  std::string_view json(reinterpret_cast<const char*>(data) + 2, size - 2);
  const std::uint64_t begin = 8 + json.size(), file_size = begin + data[0] + 256u * data[1];
  (void)ParseSafetensorsLength(millrace::AsBytes(json.substr(0, 8)), file_size, "fuzz");
  auto entries = ParseSafetensorsHeader(json, file_size, "fuzz");
  if (!entries) return 0;
  std::uint64_t end = begin;
  for (const SafetensorsEntry& entry : *entries) {
    if (entry.offset != end) std::abort();
    end += entry.meta.bytes();
  }
  if (end != file_size) std::abort();
  return 0;
}
