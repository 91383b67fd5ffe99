#include "millrace/engine/families/families.h"

#include <fmt/format.h>

#include <array>
#include <string>

#include "millrace/engine/families/bert/bert.h"
#include "millrace/engine/families/gpt2/gpt2.h"
#include "millrace/engine/families/gptj/gptj.h"
#include "millrace/engine/families/llama/llama.h"

namespace millrace::engine {

std::span<const ModelFamily> ModelFamilies() {
  static const std::array kFamilies = {LlamaFamily(), Gpt2Family(), GptjFamily(), BertFamily()};
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
