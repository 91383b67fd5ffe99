#include "millrace/engine/config/families.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <vector>

#include "millrace/engine/config/config_members.h"

namespace millrace::engine {
namespace {

/// Returns whether a key of a configuration changes what a model computes from given weights.
bool ChangesModel(std::string_view key) {
  constexpr std::array<std::string_view, 5> kOther = {"architectures", "id2label", "initializer_range", "label2id",
                                                      "max_position_embeddings"};
  return std::ranges::find(kOther, key) == kOther.end() && !key.contains("dropout") && !key.ends_with("_pdrop");
}

}  // namespace

// CMakeLists.txt writes the list from the names of the folders.
#define MILLRACE_FAMILY(Name) ModelFamily Name##Family();
#include "family_list.inc"
#undef MILLRACE_FAMILY

std::span<const ModelFamily> ModelFamilies() {
#define MILLRACE_FAMILY(Name) Name##Family(),
  static const std::array kFamilies = {
#include "family_list.inc"
  };
#undef MILLRACE_FAMILY
  return kFamilies;
}

const ModelFamily* FindFamily(std::string_view model_type) {
  for (const ModelFamily& family : ModelFamilies()) {
    if (std::ranges::find(family.model_types, model_type) != family.model_types.end()) return &family;
  }
  return nullptr;
}

const ModelFamily* FamilyOf(const Json& config) {
  const Json* type = JsonFind(config, "model_type");
  return type != nullptr && type->is_string() ? FindFamily(type->get_ref<const std::string&>()) : nullptr;
}

std::string KnownModelTypes() {
  std::vector<std::string_view> types;
  for (const ModelFamily& family : ModelFamilies()) {
    types.insert(types.end(), family.model_types.begin(), family.model_types.end());
  }
  return fmt::format("{}", fmt::join(types, ", "));
}

void SetHeads(Json& config, ModelHeads heads, std::int64_t classes) {
  const ModelFamily* family = FamilyOf(config);
  if (family != nullptr && family->set_heads != nullptr) family->set_heads(config, heads, classes);
}

Result<std::shared_ptr<const ModelConfig>> ParseModelConfig(const Json& config, std::string_view what) {
  const std::string type = MR_TRY(JsonString(config, "model_type"));
  const ModelFamily* family = FindFamily(type);
  if (family != nullptr) {
    MR_TRY(CheckForeignMembers(config, what));
    return family->parse(config, what);
  }
  return Fail(Code::kUnsupported, "{}: model_type \"{}\" is not implemented; {} are", what, type, KnownModelTypes());
}

std::string DifferenceOfModels(const Json& stored, const Json& wanted) {
  Json complete = wanted;
  const Json *size = JsonFind(wanted, "vocab_size"), *known = JsonFind(stored, "vocab_size");
  if (size != nullptr && *size == 0 && known != nullptr) complete["vocab_size"] = *known;
  const auto old_config = ParseModelConfig(stored, "config.json"), new_config = ParseModelConfig(complete, "model");
  if (!old_config || !new_config) return "";
  const Json old_json = (*old_config)->ToJson(), new_json = (*new_config)->ToJson();
  const auto value = [](const Json& json, const std::string& key) {
    const Json* found = JsonFind(json, key);
    return found == nullptr ? Json(nullptr) : *found;
  };
  for (const Json* json : {&old_json, &new_json}) {
    for (const auto& [key, unused] : json->items()) {
      const Json before = value(old_json, key), after = value(new_json, key);
      if (ChangesModel(key) && before != after)
        return fmt::format("its {} is {}, this job's is {}", key, DumpJson(before), DumpJson(after));
    }
  }
  return "";
}

}  // namespace millrace::engine
