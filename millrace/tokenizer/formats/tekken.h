// Mistral's tekken.json: special tokens, then tiktoken's ranks, and a pattern.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "millrace/tokenizer/tokenizer.h"

namespace millrace::tokenizer {

/// Returns whether the JSON is a tekken.json: it has a pattern in its config, and a vocabulary.
bool IsTekken(const nlohmann::json& json);

/// Loads a tekken.json. The special tokens have the first ids. The ranks follow, up to the default size of the
/// vocabulary. Errors: kUnsupported, with its name, for an unknown pattern; kInvalidArgument for a broken file.
Result<std::shared_ptr<const Tokenizer>> LoadTekken(const nlohmann::json& json, std::string fingerprint);

}  // namespace millrace::tokenizer
