// Hugging Face's tokenizer.json.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "millrace/tokenizer/tokenizer.h"

namespace millrace::tokenizer {

/// Loads BPE, WordPiece, WordLevel and Unigram models with what stands around them. Fails with kUnsupported, naming it,
/// on whatever else the file asks for.
Result<std::shared_ptr<const Tokenizer>> LoadTokenizerJson(nlohmann::json json, std::string fingerprint);

}  // namespace millrace::tokenizer
