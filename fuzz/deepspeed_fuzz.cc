// Reads any bytes as a folder of DeepSpeed: either an error, or tensors that lie inside its files.
// The first byte says how many ranks the folder has, and whether the ranks share the model's file, as in stage 3. Then
// come the files, each behind its size in four bytes: the model's, those of the optimizers. Files that are missing at
// the end are empty.
#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "millrace/base/bytes.h"
#include "millrace/checkpoint/convert/deepspeed/deepspeed_source.h"
#include "millrace/checkpoint/convert/tensors/import_source.h"
#include "millrace/object/blocking.h"
#include "millrace/object/local/memory_store.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace millrace;
  using namespace millrace::checkpoint;
  if (size == 0) return 0;
  const int ranks = data[0] % 4;
  const bool shares = (data[0] & 4) != 0;
  ByteSpan rest(reinterpret_cast<const std::byte*>(data) + 1, size - 1);
  const std::shared_ptr<object::Store> store = object::MakeMemoryStore();
  const auto put_next = [&](const std::vector<std::string>& names) {
    std::size_t length = 0;
    if (rest.size() >= 4) {
      length = std::min<std::size_t>(LoadLittle<std::uint32_t>(rest.data()), rest.size() - 4);
      rest = rest.subspan(4);
    }
    for (const std::string& name : names)
      if (!object::Put(*store, "f/" + name, rest.first(length))) std::abort();
    rest = rest.subspan(length);
  };
  std::vector<std::string> models;
  for (int rank = 0; shares && rank < ranks; ++rank)
    models.push_back("zero_pp_rank_" + std::to_string(rank) + "_mp_rank_00_model_states.pt");
  if (models.empty()) models.emplace_back("mp_rank_00_model_states.pt");
  put_next(models);
  for (int rank = 0; rank < ranks; ++rank)
    put_next({"zero_pp_rank_" + std::to_string(rank) + "_mp_rank_00_optim_states.pt"});
  const auto source = OpenDeepSpeedFolder({store, "f/"}, {}, {});
  if (!source) return 0;
  for (const SourceChecksum& checksum : source->checksums) {
    const std::uint64_t file = source->files.at(checksum.file).size;
    if (checksum.offset > file || checksum.size > file - checksum.offset) std::abort();
  }
  for (const SourceBox& box : source->boxes)
    if (box.offset > source->files.at(box.file).size || !source->tensors.contains(box.tensor)) std::abort();
  return 0;
}
