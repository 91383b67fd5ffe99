// Makes a tokenizer from the bytes of its file.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "millrace/base/bytes.h"
#include "millrace/base/result.h"
#include "millrace/tokenizer/tokenizer.h"

namespace millrace::tokenizer {

struct LoadOptions {
  /// The pattern that splits the text, which a .tiktoken file does not name: "gpt2" (also for r50k and p50k), "cl100k",
  /// "llama3", "qwen" or "o200k". Empty: the number of ranks selects the pattern of a published vocabulary (50256,
  /// 50280, 100256, 128000, 151643, 199998); for others, `name` contains one of these words. Other formats ignore it.
  std::string pattern;
};

/// Reads the bytes of a tokenizer's file. Their content decides the format: a SentencePiece model, Hugging Face's
/// tokenizer.json, Mistral's tekken.json, tiktoken's ranks or BERT's vocab.txt. `name` is for messages, and may tell
/// the pattern of tiktoken's ranks (see LoadOptions). The bytes need not outlive the call. Any thread.
/// Errors: kInvalidArgument if the bytes are no tokenizer. kUnsupported, with its name, for a feature of the file that
/// Millrace does not do exactly as the format's reference does.
Result<std::shared_ptr<const Tokenizer>> Load(ByteSpan model, std::string_view name, const LoadOptions& options = {});

}  // namespace millrace::tokenizer
