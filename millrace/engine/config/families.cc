#include "millrace/engine/config/families.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <vector>

namespace millrace::engine {

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
  if (family != nullptr) return family->parse(config, what);
  return Fail(Code::kUnsupported, "{}: model_type \"{}\" is not implemented; {} are", what, type, KnownModelTypes());
}

}  // namespace millrace::engine
