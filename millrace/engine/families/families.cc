#include "millrace/engine/families/families.h"

#include <fmt/format.h>

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
