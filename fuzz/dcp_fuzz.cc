// Reads any bytes as a folder of torch.distributed.checkpoint: either an error, or tensors that lie inside its file.
// The first four bytes are the size of .metadata. The bytes of .metadata follow, then those of the one data file.
#include <algorithm>
#include <cstdlib>

#include "millrace/base/bytes.h"
#include "millrace/checkpoint/convert/tensors/import_source.h"
#include "millrace/checkpoint/convert/tensors/meta_names.h"
#include "millrace/checkpoint/convert/torch/dcp_source.h"
#include "millrace/checkpoint/convert/torch/state_tree.h"
#include "millrace/object/blocking.h"
#include "millrace/object/local/memory_store.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace millrace;
  using namespace millrace::checkpoint;
  if (size < 4) return 0;
  ByteSpan all(reinterpret_cast<const std::byte*>(data), size);
  const std::size_t length = std::min<std::size_t>(LoadLittle<std::uint32_t>(all.data()), size - 4);
  const ByteSpan metadata = all.subspan(4, length), file = all.subspan(4 + length);
  const std::shared_ptr<object::Store> store = object::MakeMemoryStore();
  if (!object::Put(*store, "f/.metadata", metadata) || !object::Put(*store, "f/__0_0.distcp", file)) std::abort();
  const auto source = OpenDcpFolder({store, "f/"}, {});
  if (!source) return 0;
  for (const SourceChecksum& checksum : source->checksums)
    if (checksum.offset > file.size() || checksum.size > file.size() - checksum.offset) std::abort();
  for (const SourceBox& box : source->boxes)
    if (box.offset > file.size() || !source->tensors.contains(box.tensor)) std::abort();
  // An import is refused unless an export could put the state together again.
  const Json* values = JsonFind(source->meta, kMetaValues);
  const Json* dicts = JsonFind(source->meta, kMetaDicts);
  (void)BuildState(source->tensors, values != nullptr ? *values : Json::object(), dicts != nullptr ? *dicts : Json());
  return 0;
}
