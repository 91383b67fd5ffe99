#include "millrace/engine/families/families.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>

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

void SetHeads(Json& json, ModelHeads heads, std::int64_t classes) {
  const Json* type = JsonFind(json, "model_type");
  for (const ModelFamily& family : ModelFamilies()) {
    if (family.set_heads == nullptr || type == nullptr || !type->is_string()) continue;
    const std::string name = type->get<std::string>();
    if (std::ranges::find(family.model_types, name) != family.model_types.end()) family.set_heads(json, heads, classes);
  }
}

Result<std::shared_ptr<const ModelConfig>> ParseModelConfig(const Json& json, std::string_view what) {
  const std::string type = MR_TRY(JsonString(json, "model_type"));
  std::string known;
  for (const ModelFamily& family : ModelFamilies()) {
    for (const std::string_view name : family.model_types) {
      if (name == type) return family.parse(json, what);
      known += known.empty() ? std::string(name) : fmt::format(", {}", name);
    }
  }
  return Fail(Code::kUnsupported, "{}: model_type \"{}\" is not implemented; {} are", what, type, known);
}

}  // namespace millrace::engine
