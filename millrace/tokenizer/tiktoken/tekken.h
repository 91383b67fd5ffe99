// Mistral's tekken.json: tiktoken's ranks with a pattern, behind special tokens.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "millrace/tokenizer/tokenizer.h"

namespace millrace::tokenizer {

/// Whether it has what makes a tekken.json: a pattern in its config, and a vocabulary.
bool IsTekken(const nlohmann::json& json);

/// Special tokens have the first ids, and ranks follow, as many as the default size of the vocabulary has room for.
/// Fails with kUnsupported, naming it, on a pattern that is not known.
Result<std::shared_ptr<const Tokenizer>> LoadTekken(const nlohmann::json& json, std::string fingerprint);

}  // namespace millrace::tokenizer
