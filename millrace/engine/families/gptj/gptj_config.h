// GPT-J (Wang, Komatsuzaki 2021): attention and MLP of a block read the same norm and are added together; neighbouring
// dimensions are rotated; the LM head has a bias. Names and numerics are those of transformers' GPTJForCausalLM.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "millrace/base/json.h"
#include "millrace/base/result.h"
#include "millrace/engine/config/model_family.h"
#include "millrace/engine/families/gpt_config.h"

namespace millrace::engine {

class GptjConfig final : public GptConfig {
 public:
  std::int64_t rotary_dim = 64;  ///< the number of a head's first dimensions that are rotated

  /// The defaults of transformers' GPTJConfig.
  GptjConfig();
  static Result<std::shared_ptr<GptjConfig>> FromJson(const Json& json, std::string_view what);

  std::string_view family() const override { return "gptj"; }
  Json ToJson() const override;
  Status Validate(std::string_view what) const override;
  plan::ModelShape Shape() const override;
};

ModelFamily GptjFamily();

}  // namespace millrace::engine
