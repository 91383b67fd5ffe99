// Vocabularies of GGUF files as the tokenizer files of other programs.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "millrace/checkpoint/gguf/gguf_header.h"

namespace millrace::checkpoint {

/// The tokenizer of a file.
struct GgufTokenizer {
  /// tokenizer.model, or tokenizer.json with tokenizer_config.json.
  std::map<std::string, std::string> files;
  std::string refusal;  ///< why there are no files
};

/// Returns the tokenizer of a file: SentencePieceOf() or ByteLevelFilesOf().
GgufTokenizer TokenizerOf(const GgufHeader& header);

/// Returns the tokenizer.model of a file whose tokenizer.ggml.model is "llama": a BPE model with the file's pieces,
/// scores and types. As that of Llama 2, the model puts a space in front of texts and has bytes for unknown characters.
/// Returns nothing if the file has another vocabulary, or one whose lists differ in length.
std::optional<std::string> SentencePieceOf(const GgufHeader& header);

/// Adds the vocabulary of a tokenizer.model to the metadata. Returns false, and adds nothing, if it is no BPE model of
/// SentencePiece with `tokens` pieces or fewer. Missing pieces become unused tokens, as llama.cpp's converter has it.
bool AddSentencePiece(std::string_view tokenizer_model, std::uint64_t tokens,
                      std::map<std::string, GgufValue>& metadata);

}  // namespace millrace::checkpoint
