// Tokenizers that are JSON: Hugging Face's tokenizer.json, Mistral's tekken.json.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "millrace/tokenizer/tokenizer.h"

namespace millrace::tokenizer {

/// Loads BPE, WordPiece, WordLevel and Unigram models with what stands around them. Fails with kUnsupported, naming it,
/// on whatever else the file asks for.
Result<std::shared_ptr<const Tokenizer>> LoadJson(std::string_view json, std::string fingerprint);

}  // namespace millrace::tokenizer
