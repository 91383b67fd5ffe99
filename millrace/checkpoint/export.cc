#include "millrace/checkpoint/export.h"

#include <algorithm>
#include <tuple>

#include "millrace/checkpoint/safetensors.h"
#include "millrace/object/blocking.h"
#include "millrace/transfer/multipart_writer.h"

namespace millrace::checkpoint {
namespace {

/// Read at once from the checkpoint, with several requests.
constexpr std::uint64_t kWindow = 32 * kMiB, kLeastWindow = 1 * kMiB;

/// Tensors of the model under the names that Hugging Face knows, in the order of the file.
std::vector<SafetensorsEntry> ModelEntries(const Manifest& manifest) {
  std::vector<SafetensorsEntry> entries;
  for (const auto& [name, meta] : manifest.tensors)
    if (name.starts_with(kModelGroup)) entries.push_back({name.substr(kModelGroup.size()), meta});
  std::sort(entries.begin(), entries.end(), [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
    return std::tuple(DTypeBytes(b.meta.dtype), std::string_view(a.name)) <
           std::tuple(DTypeBytes(a.meta.dtype), std::string_view(b.name));
  });
  return entries;
}

}  // namespace

Result<Exported> ExportHuggingFace(Reader& reader, const object::Location& folder, MemoryBudget& budget,
                                   object::Call call, const Progress& progress) {
  std::vector<SafetensorsEntry> entries = ModelEntries(reader.manifest());
  const Json* config = JsonFind(reader.manifest().meta, kMetaModelConfig);
  if (entries.empty()) return Fail(Code::kNotFound, "{} has no tensors named {}…", reader.name(), kModelGroup);
  if (config == nullptr) {
    return Fail(Code::kNotFound, "{} says nothing of its model: its meta has no {} to write config.json from",
                reader.name(), kMetaModelConfig);
  }
  std::string prefix = folder.key;
  while (prefix.ends_with('/')) prefix.pop_back();
  if (!prefix.empty()) prefix += '/';

  // A quarter of the budget for reading; the parts on their way out share the rest.
  Reservation reserved = MR_TRY(budget.Acquire(std::clamp(budget.total() / 4, kLeastWindow, kWindow), call.stop));
  Buffer window(reserved.bytes());
  transfer::MultipartWriter out(*folder.store, budget, prefix + "model.safetensors", {});
  MR_TRY(out.Write(AsBytes(MakeSafetensorsHeader(entries, {{"format", "pt"}})), call));
  for (const SafetensorsEntry& entry : entries) {
    const std::string name = std::string(kModelGroup) + entry.name;
    const std::uint64_t element = DTypeBytes(entry.meta.dtype), total = entry.meta.elements();
    for (std::uint64_t begin = 0; begin < total;) {
      const std::uint64_t take = std::min(window.size() / element, total - begin);
      MutableByteSpan bytes = window.span().first(take * element);
      MR_TRY(reader.Read(name, begin, bytes, call));
      MR_TRY(out.Write(bytes, call));
      if (progress) progress(bytes.size());
      begin += take;
    }
  }
  auto finished = MR_TRY(out.Finish(call));
  MR_TRY(object::Put(*folder.store, prefix + "config.json", AsBytes(DumpJsonPretty(*config) + "\n"),
                     {.content_type = "application/json"}, call));
  return Exported{entries.size(), finished.size};
}

}  // namespace millrace::checkpoint
