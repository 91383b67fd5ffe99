// Byte-level BPE vocabularies in GGUF files (GPT-2, Llama 3, Qwen 2), and as tokenizer.json files.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "millrace/base/result.h"
#include "millrace/checkpoint/gguf/gguf_header.h"

namespace millrace::checkpoint {

/// Returns the tokenizer.json and the tokenizer_config.json of a file whose tokenizer.ggml.model is "gpt2".
/// tokenizer.ggml.pre names how texts are split: "default", "gpt-2", "llama-bpe" or "qwen2".
/// Errors: kUnsupported, with its name, for another split, or if the file names none; kCorrupt if lists are missing or
/// differ in length.
Result<std::map<std::string, std::string>> ByteLevelFilesOf(const GgufHeader& header);

/// Adds the vocabulary of a tokenizer.json to the metadata. `config`: the tokenizer_config.json, which names the tokens
/// that begin and end texts; may be empty. Missing tokens of `tokens` become unused ones, as llama.cpp's converter has
/// it. Errors: kUnsupported, with the reason, for a tokenizer that llama.cpp would read as another one;
/// kInvalidArgument if a file is no JSON. Nothing is added then.
Status AddByteLevel(std::string_view tokenizer, std::string_view config, std::uint64_t tokens,
                    std::map<std::string, GgufValue>& metadata);

}  // namespace millrace::checkpoint
