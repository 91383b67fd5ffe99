// Reads the normalizer and the pre-tokenizer of a tokenizer.json into steps.
#pragma once

#include <vector>

#include "millrace/tokenizer/huggingface/hf_file.h"
#include "millrace/tokenizer/huggingface/hf_normalizer.h"
#include "millrace/tokenizer/huggingface/hf_pre_tokenizer.h"

namespace millrace::tokenizer::hf {

/// Errors: kUnsupported, with its name, for a step that Millrace does not do exactly as the library does.
Result<std::vector<HfNormalizer::Step>> ReadNormalizer(const Json& normalizer);
/// Errors: those of ReadNormalizer().
Result<std::vector<HfPreTokenizer::Step>> ReadPreTokenizer(const Json& pre_tokenizer);

}  // namespace millrace::tokenizer::hf
