#include "millrace/checkpoint/convert/tensors/export_target.h"

#include <algorithm>

#include "millrace/checkpoint/convert/tensors/group_view.h"
#include "millrace/checkpoint/convert/tensors/meta_names.h"
#include "millrace/checkpoint/convert/torch/state_tree.h"
#include "millrace/checkpoint/convert/torch/torch_file.h"
#include "millrace/checkpoint/format/manifest.h"
#include "millrace/transfer/stream/multipart_writer.h"

namespace millrace::checkpoint {
namespace {

/// The places of a tensor's bytes in the checkpoint. Tensors of the same location share a storage.
using TensorLocation = std::vector<std::tuple<std::string, std::uint64_t, std::uint64_t, std::uint64_t, Box>>;

std::map<std::string, TensorLocation> LocationsOf(const Manifest& manifest) {
  std::map<std::string, TensorLocation> locations;
  for (const Slice& slice : manifest.slices)
    locations[slice.tensor].emplace_back(slice.file, slice.offset, slice.begin, slice.elements, slice.box);
  for (auto& [tensor, location] : locations) std::sort(location.begin(), location.end());
  return locations;
}

}  // namespace

Result<ExportResult> ExportTorchFile(TensorStream& stream, const ExportTarget& target, std::string_view group) {
  const Manifest& manifest = stream.reader().manifest();
  const auto tensors = TensorsBelow(manifest, group);
  if (tensors.empty()) {
    return Fail(Code::kNotFound, "{} has no tensors named {}…; `millrace ckpt show` shows what it has",
                stream.reader().name(), group);
  }
  const auto locations = LocationsOf(manifest);
  std::map<std::string, std::string> state;  // path of a tensor → key of its storage
  std::map<std::tuple<TensorLocation, DType, std::vector<std::int64_t>>, std::string> known;
  std::vector<std::string> storages;  // for each storage the tensor whose bytes it holds
  for (const auto& [path, meta] : tensors) {
    const std::string name = std::string(group) + path;
    std::string key = StorageKey(storages.size());
    if (auto location = locations.find(name); location != locations.end()) {
      auto [same, added] = known.emplace(std::tuple(location->second, meta.dtype, meta.shape), key);
      key = same->second;
      if (added) storages.push_back(name);
    } else {
      storages.push_back(name);
    }
    state.emplace(path, std::move(key));
  }
  stream.Announce(storages);
  PickleWriter pickle;
  Json values = ValuesBelow(manifest, group);
  const Json* meta = JsonFind(values, kMetaEntry);
  StateNode::Item kept{.key = kMetaEntry, .part = std::string(kMetaEntry)};
  if (meta != nullptr) kept.node.push_back({.value = *meta});
  values.erase(std::string(kMetaEntry));
  StateNode tree = MR_TRY(BuildState(tensors, values, DictsBelow(manifest, group)));
  if (!kept.node.empty()) tree.items.push_back(std::move(kept));
  MR_TRY(WriteState(pickle, tree, state));

  const object::Call& call = stream.call();
  transfer::MultipartWriter out(*target.to.store, target.budget, target.to.key, {});
  ZipWriter zip([&](ByteSpan bytes) { return out.Write(bytes, call); });
  MR_TRY(BeginTorchArchive(zip, std::move(pickle).Finish()));
  for (std::size_t i = 0; i < storages.size(); ++i) {
    MR_TRY(zip.Begin(StorageEntry(StorageKey(i)), manifest.tensors.at(storages[i]).bytes()));
    MR_TRY(stream.Stream(storages[i], [&](ByteSpan bytes) { return zip.Write(bytes); }));
    MR_TRY(zip.End());
  }
  MR_TRY(EndTorchArchive(zip));
  const std::uint64_t bytes = MR_TRY(out.Finish(call)).size;
  return ExportResult{tensors.size(), 1, bytes};
}

}  // namespace millrace::checkpoint
