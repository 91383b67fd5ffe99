// Opens the tokenizer at a URL. Every command, training, serving and the Python package open tokenizers with it.
#pragma once

#include <memory>
#include <string_view>

#include "millrace/base/error.h"
#include "millrace/base/log.h"
#include "millrace/object/connection.h"
#include "millrace/tokenizer/tokenizer.h"

namespace millrace::checkpoint {
class ModelSource;
}

namespace millrace::tokenizer {

/// Opens the tokenizer at `url`. The URL names a tokenizer's file (see load.h), a Hugging Face folder, a checkpoint, or
/// a GGUF file of any model. The tokenizer gets bos_token and eos_token from a tokenizer_config.json in the same
/// folder, or else from a special_tokens_map.json. Paths and s3:// URLs alike. Blocks. The tokenizer needs neither the
/// connection nor the file afterwards. Any thread. Errors: kNotFound if there is neither a file nor a model with a
/// tokenizer; those of OpenModelTokenizer(), Load() and ReadDeclaredTokens().
Result<std::shared_ptr<const Tokenizer>> OpenTokenizer(object::Connection& connection, std::string_view url,
                                                       const Logger& log, object::Call call = {});

/// Opens the tokenizer that came with `model`: the first of tokenizer.json, tokenizer.model and vocab.txt that Millrace
/// supports, in the order in which transformers looks for them, or without any of them vocab.json with merges.txt.
/// Warns in `log` if it is not the first of them. Blocks. Errors: kNotFound if the model has none of these files;
/// kUnsupported, with the reason for the first, if Millrace supports none of them; kInvalidArgument for a broken file;
/// those of ReadDeclaredTokens().
Result<std::shared_ptr<const Tokenizer>> OpenModelTokenizer(const checkpoint::ModelSource& model, const Logger& log,
                                                            object::Call call = {});

}  // namespace millrace::tokenizer
