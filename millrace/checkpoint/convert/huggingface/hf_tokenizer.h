// The tokenizer files of an exported model. A checkpoint of a training run holds only the URL of its tokenizer.
// Hugging Face's libraries need the tokenizer's files in the model's folder.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "millrace/base/json.h"
#include "millrace/base/log.h"
#include "millrace/checkpoint/format/manifest.h"
#include "millrace/object/connection.h"

namespace millrace::checkpoint {

/// The tokenizer of the run that made a checkpoint: its URL, and the fingerprint of its content.
struct TokenizerOrigin {
  std::string url, fingerprint;
};
/// Returns nothing if the checkpoint holds the tokenizer's files itself, or if no training run made it.
std::optional<TokenizerOrigin> FindTokenizerOrigin(const Manifest& manifest);

/// Reads the tokenizer at `url`, which is a tokenizer's file or a model that has one. Returns the tokenizer's files for
/// a model's folder, by name, with those beside a tokenizer.json or tokenizer.model. They include
/// tokenizer_config.json, so AutoTokenizer of transformers opens the folder. Errors: kNotFound if there is none;
/// kUnsupported if it is neither a tokenizer.json nor a SentencePiece model. Blocks.
Result<std::map<std::string, std::string>> TokenizerFilesAt(object::Connection& connection, std::string_view url,
                                                            const Logger& log, object::Call call = {});

/// Returns the same files from the content of a tokenizer's file: the file itself, under its name in a model's folder,
/// and tokenizer_config.json. `name` names the file in messages. Pure.
Result<std::map<std::string, std::string>> TokenizerFilesOf(std::string content, std::string_view name);

}  // namespace millrace::checkpoint
