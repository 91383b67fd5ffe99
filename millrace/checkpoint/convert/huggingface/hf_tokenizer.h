// The files by which Hugging Face's libraries open a tokenizer. A trained checkpoint has none: it names its tokenizer.
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

/// Where the run that made a checkpoint had its tokenizer, and what tells it from others.
struct TokenizerOrigin {
  std::string url, fingerprint;
};
/// Nothing where the checkpoint brings a tokenizer of its own, or was not made by a training run.
std::optional<TokenizerOrigin> FindTokenizerOrigin(const Manifest& manifest);

/// Reads the tokenizer at `url`, a file or a model that came with one, as files of a model's folder, by name: with a
/// tokenizer_config.json, so that transformers' AutoTokenizer opens the folder without asking anybody.
/// Errors: kNotFound if there is none; kUnsupported if it is neither a tokenizer.json nor a SentencePiece model.
/// Blocks.
Result<std::map<std::string, std::string>> TokenizerFilesAt(object::Connection& connection, std::string_view url,
                                                            const Logger& log, object::Call call = {});

/// The same from the content of the tokenizer's file, `name`: that file under the name that it has in a model's folder,
/// and tokenizer_config.json. Pure.
Result<std::map<std::string, std::string>> TokenizerFilesOf(std::string content, std::string_view name);

}  // namespace millrace::checkpoint
