// A tokenizer.json step by step: normalizer, pre-tokenizer, model, decoder. Takes what the quicker ways of byte_bpe.h,
// sentencepiece.h and wordpiece.h do not.
#pragma once

#include <memory>
#include <string>

#include "millrace/tokenizer/huggingface/hf_file.h"

namespace millrace::tokenizer::hf {

/// `file` has its vocabulary. Errors: kUnsupported, naming it, for a part that is not done here exactly as the library
/// does it.
Result<std::shared_ptr<const Tokenizer>> MakePipeline(File file, std::string fingerprint);

}  // namespace millrace::tokenizer::hf
