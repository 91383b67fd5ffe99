// Any bytes are either an error or an archive whose tensors lie inside it.
#include <cstdlib>

#include "millrace/checkpoint/convert/tensors/import_source.h"
#include "millrace/checkpoint/convert/torch/torch_file.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace millrace;
  using namespace millrace::checkpoint;
  const ByteSpan all(reinterpret_cast<const std::byte*>(data), size);
  // Reads the pickle without its ZIP archive too, because few inputs are valid archives.
  if (auto pickle = Pickle::Read(AsText(all), TorchGlobals(), "fuzz"); pickle) {
    (void)StateOf(*pickle);
    (void)ValueOf(*pickle, pickle->root());
  }
  MemoryBytes bytes(all, "fuzz");
  ImportSource source;
  if (!AddTorchState(bytes, "fuzz", "", source)) return 0;
  for (const SourceChecksum& checksum : source.checksums)
    if (checksum.offset > size || checksum.size > size - checksum.offset) std::abort();
  for (const SourceBox& box : source.boxes)
    if (box.offset > size || !source.tensors.contains(box.tensor)) std::abort();
  return 0;
}
