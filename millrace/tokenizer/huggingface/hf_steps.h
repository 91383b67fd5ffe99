// The normalizer and the pre-tokenizer of a tokenizer.json, read into steps.
#pragma once

#include <vector>

#include "millrace/tokenizer/huggingface/hf_file.h"
#include "millrace/tokenizer/huggingface/hf_normalizer.h"
#include "millrace/tokenizer/huggingface/hf_pre_tokenizer.h"

namespace millrace::tokenizer::hf {

/// Errors: kUnsupported, naming it, for a step that is not done here exactly as the library does it.
Result<std::vector<HfNormalizer::Step>> ReadNormalizer(const Json& normalizer);
/// The same.
Result<std::vector<HfPreTokenizer::Step>> ReadPreTokenizer(const Json& pre_tokenizer);

}  // namespace millrace::tokenizer::hf
