// Runs a tokenizer.json step by step: normalizer, pre-tokenizer, model, decoder. For the files that the faster code of
// byte_bpe.h, sentencepiece.h and wordpiece.h does not support.
#pragma once

#include <memory>
#include <string>

#include "millrace/tokenizer/huggingface/hf_file.h"

namespace millrace::tokenizer::hf {

/// Makes the tokenizer. REQUIRES: `file` has its vocabulary. Errors: kUnsupported, with its name, for a part that
/// Millrace does not do exactly as the library does.
Result<std::shared_ptr<const Tokenizer>> MakePipeline(TokenizerFile file, std::string fingerprint);

}  // namespace millrace::tokenizer::hf
