#include "millrace/checkpoint/convert/huggingface/hf_model.h"

#include <set>
#include <utility>
#include <vector>

#include "millrace/checkpoint/convert/huggingface/hf_folder.h"
#include "millrace/checkpoint/format/manifest.h"
#include "millrace/engine/config/config_members.h"
#include "millrace/object/blocking.h"

namespace millrace::checkpoint {
namespace {

/// The largest file beside the weights that is imported. A guess: larger files are not a tokenizer's.
constexpr std::uint64_t kMaxExtra = 256 * kMiB;

/// Splits a tensor's name into its group, with the name of the optimizer's state, and the parameter's name. The
/// latter is empty if the tensor belongs to no parameter.
std::pair<std::string, std::string> SplitParameter(const std::string& tensor) {
  std::size_t group = 0;
  if (tensor.starts_with(kModelGroup)) group = kModelGroup.size();
  if (tensor.starts_with(kOptimizerGroup)) group = tensor.find('/', kOptimizerGroup.size()) + 1;
  if (group == 0) return {tensor, ""};
  return {tensor.substr(0, group), tensor.substr(group)};
}

/// Returns the tensors that share their bytes with another one.
std::set<std::string> AliasesOf(const ImportSource& source) {
  std::map<std::pair<std::string_view, std::uint64_t>, int> uses;
  for (const SourceBox& box : source.boxes) ++uses[{box.file, box.offset}];
  std::set<std::string> aliases;
  for (const SourceBox& box : source.boxes)
    if (uses.at({box.file, box.offset}) > 1) aliases.insert(box.tensor);
  return aliases;
}

}  // namespace

void NormalizeModel(ImportSource& source) {
  const Json* config = JsonFind(source.meta, kMetaModelConfig);
  if (config == nullptr) return;
  std::vector<std::string> names;
  for (const auto& [tensor, meta] : source.tensors)
    if (tensor.starts_with(kModelGroup)) names.push_back(tensor.substr(kModelGroup.size()));
  const ModelNames model_names(*config, names);
  const std::size_t before = source.tensors.size();
  const auto aliases = AliasesOf(source);
  source.Rename([&](const std::string& tensor) {
    const auto [group, name] = SplitParameter(tensor);
    if (name.empty()) return std::optional(tensor);
    if (aliases.contains(tensor) && IsTiedName(*config, name)) return std::optional<std::string>();
    auto renamed = model_names(name);
    return renamed ? std::optional(group + *renamed) : std::nullopt;
  });
  source.left_out = before - source.tensors.size();
  std::string note = engine::UnknownMembersNote(*config);
  if (!note.empty()) source.notes.push_back(std::move(note));
}

Result<std::map<std::string, object::ObjectInfo>> FilesOfModel(const object::Location& folder,
                                                               const object::Call& call) {
  auto files = MR_TRY(FilesOf(folder, call));
  for (auto& [file, info] : MR_TRY(FilesOf({folder.store, folder.key + std::string(kTemplateFolder)}, call))) {
    std::string name = std::string(kTemplateFolder) + file;
    if (IsModelFile(name)) files.emplace(std::move(name), std::move(info));
  }
  return files;
}

void AddModelFile(ImportSource& source, const std::string& file, const std::string& name) {
  const object::ObjectInfo& info = source.files.at(file);
  if (!IsModelFile(name) || info.size > kMaxExtra) return;
  const std::string tensor = std::string(kFilesGroup) + name;
  source.tensors[tensor] = {DType::kU8, {static_cast<std::int64_t>(info.size)}};
  if (info.size > 0) source.boxes.push_back({tensor, {}, file, 0, {}});
}

Result<Json> ReadConfigFile(object::ReadStore& store, const object::ObjectInfo& file, const object::Call& call) {
  auto content = MR_TRY(object::GetAll(store, file.key, kMaxConfigBytes, call));
  if (!content) return Fail(Code::kStale, "{} was removed while its folder was read", file.key);
  return ParseJson(content->bytes, file.key);
}

}  // namespace millrace::checkpoint
