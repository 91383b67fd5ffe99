// Hugging Face's tokenizer.json.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "millrace/tokenizer/tokenizer.h"

namespace millrace::tokenizer {

/// Loads byte-level BPE (GPT-2's and Llama 3's patterns), BPE of characters with byte fallback (Llama 2) and WordPiece
/// (BERT). Fails with kUnsupported, naming it, on whatever else the file asks for.
Result<std::shared_ptr<const Tokenizer>> LoadHuggingFace(std::string_view json, std::string fingerprint);

}  // namespace millrace::tokenizer
