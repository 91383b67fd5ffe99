// Makes the configuration files of a trained model. They keep all members of the files that the run began with.
#pragma once

#include <c10/core/ScalarType.h>

#include <span>
#include <string>

#include "millrace/base/json.h"
#include "millrace/engine/config/model_config.h"
#include "millrace/tokenizer/tokenizer.h"

namespace millrace::train {

/// Returns the config.json of the trained model: `stored`, the config.json that the run began with, with the values of
/// `config`. The classes get the names `classes`; without `classes`, they keep their stored names if their number is
/// the same. The tokenizer's end-of-text token is added to eos_token_id, because the texts of training end with it.
/// `stored` may be null.
Json TunedConfig(const Json& stored, const engine::ModelConfig& config, std::span<const std::string> classes,
                 at::ScalarType precision, const tokenizer::Tokenizer& tokenizer);

/// Returns the generation_config.json of the trained model: `stored` with the tokenizer's end-of-text token. Null if
/// `stored` is null.
Json TunedGenerationConfig(const Json& stored, const tokenizer::Tokenizer& tokenizer);

}  // namespace millrace::train
