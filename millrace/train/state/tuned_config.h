// The configuration files of the model that a run trains: what the model's folder says is carried through.
#pragma once

#include <c10/core/ScalarType.h>

#include <span>
#include <string>

#include "millrace/base/json.h"
#include "millrace/engine/config/model_config.h"
#include "millrace/tokenizer/tokenizer.h"

namespace millrace::train {

/// Returns the config.json of the trained model. It has all members of `stored`, the config.json that the run began
/// with, with the values of `config`. Its classes have the names `classes`; without them those of `stored`, if it has
/// as many. eos_token_id has the tokenizer's eos, too, since texts of training end with it. `stored` may be null.
Json TunedConfig(const Json& stored, const engine::ModelConfig& config, std::span<const std::string> classes,
                 at::ScalarType precision, const tokenizer::Tokenizer& tokenizer);

/// Returns the generation_config.json of the trained model: `stored` and the tokenizer's eos; null if that is null.
Json TunedGenerationConfig(const Json& stored, const tokenizer::Tokenizer& tokenizer);

}  // namespace millrace::train
