// Reads any bytes as a torch_dist folder of Megatron-Core: either an error, or tensors that lie inside its files.
// The files common.pt, .metadata and __0_0.distcp follow each other, the first two behind their sizes in four bytes.
#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "millrace/base/bytes.h"
#include "millrace/checkpoint/convert/megatron/megatron_source.h"
#include "millrace/checkpoint/convert/tensors/import_source.h"
#include "millrace/object/blocking.h"
#include "millrace/object/local/memory_store.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace millrace;
  using namespace millrace::checkpoint;
  constexpr std::string_view kFormat = R"({"sharded_backend": "torch_dist", "sharded_backend_version": 1})";
  ByteSpan rest(reinterpret_cast<const std::byte*>(data), size);
  const std::shared_ptr<object::Store> store = object::MakeMemoryStore();
  if (!object::Put(*store, "f/metadata.json", std::as_bytes(std::span(kFormat)))) std::abort();
  for (const char* name : {"f/common.pt", "f/.metadata"}) {
    if (rest.size() < 4) return 0;
    const std::size_t length = std::min<std::size_t>(LoadLittle<std::uint32_t>(rest.data()), rest.size() - 4);
    if (!object::Put(*store, name, rest.subspan(4, length))) std::abort();
    rest = rest.subspan(4 + length);
  }
  if (!object::Put(*store, "f/__0_0.distcp", rest)) std::abort();
  const auto source = OpenMegatronFolder({store, "f/"}, {}, {});
  if (!source) return 0;
  for (const SourceChecksum& checksum : source->checksums) {
    const std::uint64_t file = source->files.at(checksum.file).size;
    if (checksum.offset > file || checksum.size > file - checksum.offset) std::abort();
  }
  for (const SourceBox& box : source->boxes)
    if (box.offset > source->files.at(box.file).size || !source->tensors.contains(box.tensor)) std::abort();
  return 0;
}
