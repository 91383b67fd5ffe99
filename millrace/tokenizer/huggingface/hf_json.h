// Hugging Face's tokenizer.json.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "millrace/tokenizer/tokenizer.h"

namespace millrace::tokenizer {

/// Loads a BPE, WordPiece, WordLevel or Unigram model with its normalizer, pre-tokenizer and decoder.
/// Errors: kUnsupported, with its name, for anything else that the file asks for; kInvalidArgument for a broken file.
Result<std::shared_ptr<const Tokenizer>> LoadTokenizerJson(nlohmann::json json, std::string fingerprint);

}  // namespace millrace::tokenizer
