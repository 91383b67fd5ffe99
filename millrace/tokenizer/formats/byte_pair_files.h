// GPT-2's form of a byte-level tokenizer, vocab.json with merges.txt, as one tokenizer.json. OPT, RoBERTa, Cerebras-GPT
// and others are published without the latter.
#pragma once

#include <string>
#include <string_view>

#include "millrace/base/json.h"
#include "millrace/base/result.h"

namespace millrace::tokenizer {

/// The contents of the files. `config` is the tokenizer_config.json, or an empty object without one.
struct BytePairFiles {
  std::string_view vocab, merges;
  Json config;
};

/// Returns the tokenizer.json that transformers makes of the files. The special tokens that the configuration names are
/// found in texts where specials are allowed, as far as the vocabulary has them.
/// Errors: kInvalidArgument if the vocabulary is no JSON object of numbers; kUnsupported, naming it, if the
/// configuration asks for another class of tokenizers than GPT-2's, RoBERTa's, BART's or Qwen2's.
Result<std::string> MakeTokenizerJson(const BytePairFiles& files);

}  // namespace millrace::tokenizer
