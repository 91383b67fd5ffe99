// Any header of a GGUF file is refused or describes tensors inside of the file. What it describes can be decoded.
#include <cstdlib>

#include "millrace/checkpoint/gguf/gguf_model.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace millrace;
  using namespace millrace::checkpoint;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const auto header = ParseGgufHeader(bytes, size, "fuzz.gguf");
  if (!header || !*header) return 0;
  const auto model = DescribeGgufModel(**header, std::nullopt, {}, "fuzz.gguf");
  if (!model) return 0;
  for (const GgufPart& part : model->parts) {
    if (part.offset > size || part.stored_bytes > size - part.offset) std::abort();
    if (part.meta.elements() % part.unit_elements() != 0) std::abort();
    Buffer decoded(part.meta.bytes());
    part.Decode(AsBytes(bytes.substr(part.offset, part.stored_bytes)), decoded.span());
  }
  return 0;
}
