// Runs a tokenizer.json step by step: normalizer, pre-tokenizer, model, decoder. For the files that the faster code of
// byte_bpe.h, sentencepiece.h and wordpiece.h does not support.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "millrace/tokenizer/huggingface/hf_file.h"
#include "millrace/tokenizer/huggingface/hf_normalizer.h"
#include "millrace/tokenizer/huggingface/hf_pre_tokenizer.h"

namespace millrace::tokenizer::hf {

/// Makes the tokenizer. REQUIRES: `file` has its vocabulary. Errors: kUnsupported, with its name, for a part that
/// Millrace does not do exactly as the library does.
Result<std::shared_ptr<const Tokenizer>> MakePipeline(TokenizerFile file, std::string fingerprint);

/// Errors: kUnsupported, with its name, for a step that Millrace does not do exactly as the library does.
Result<std::vector<HfNormalizer::Step>> ReadNormalizer(const Json& normalizer);
/// Errors: those of ReadNormalizer().
Result<std::vector<HfPreTokenizer::Step>> ReadPreTokenizer(const Json& pre_tokenizer);

}  // namespace millrace::tokenizer::hf
