#include "millrace/checkpoint/convert/tensors/group_view.h"

#include "millrace/checkpoint/convert/tensors/meta_names.h"

namespace millrace::checkpoint {

std::map<std::string, TensorMeta> TensorsBelow(const Manifest& manifest, std::string_view group) {
  std::map<std::string, TensorMeta> tensors;
  for (const auto& [name, meta] : manifest.tensors)
    if (name.starts_with(group)) tensors.emplace(name.substr(group.size()), meta);
  return tensors;
}

Json ValuesBelow(const Manifest& manifest, std::string_view group) {
  Json::object_t below;
  if (const Json* values = JsonFind(manifest.meta, kMetaValues); values != nullptr && values->is_object()) {
    for (const auto& [path, value] : values->items())
      if (path.starts_with(group)) below.emplace_back(path.substr(group.size()), value);
  }
  Json rest = manifest.meta;
  if (rest.is_object()) {
    rest.erase(std::string(kMetaValues));
    rest.erase(std::string(kMetaDicts));
  }
  if (group.empty() && rest.is_object() && !rest.empty()) below.emplace_back(std::string(kMetaEntry), DumpJson(rest));
  return below;
}

Json DictsBelow(const Manifest& manifest, std::string_view group) {
  Json::object_t below;
  const Json* dicts = JsonFind(manifest.meta, kMetaDicts);
  if (dicts == nullptr || !dicts->is_object()) return below;
  for (const auto& [path, described] : dicts->items()) {
    if (path.starts_with(group)) below.emplace_back(path.substr(group.size()), described);
    if (!group.empty() && path == group.substr(0, group.size() - 1)) below.emplace_back("", described);
  }
  return below;
}

}  // namespace millrace::checkpoint
