// GPT-2 (Radford et al. 2019): pre-norm decoder with learned positions, layer norms with biases, and GELU. Names and
// numerics are those of transformers' GPT2LMHeadModel, whose files hold the weights of linear layers transposed, and of
// GPT2ForSequenceClassification, which scores the last token of each row.
#pragma once

#include <memory>
#include <string_view>

#include "millrace/base/json.h"
#include "millrace/base/result.h"
#include "millrace/engine/config/model_family.h"
#include "millrace/engine/families/gpt_config.h"

namespace millrace::engine {

class Gpt2Config final : public GptConfig {
 public:
  bool classifies = false;      ///< scores classes of rows instead of tokens
  std::int64_t num_labels = 2;  ///< classes, if `classifies`

  /// The defaults of transformers' GPT2Config.
  Gpt2Config();
  /// Errors: kUnsupported on attention that is scaled otherwise.
  static Result<std::shared_ptr<Gpt2Config>> FromJson(const Json& json, std::string_view what);

  std::string_view family() const override { return "gpt2"; }
  Json ToJson() const override;
  bool generates() const override { return !classifies; }
  bool predicts_tokens() const override { return !classifies; }
  bool predicts_rows() const override { return classifies; }
  std::string_view class_layer() const override { return "score"; }
  plan::ModelShape Shape() const override;
};

ModelFamily Gpt2Family();

}  // namespace millrace::engine
