// Tokenizers from SentencePiece models.
#pragma once

#include <memory>
#include <string>

#include "millrace/tokenizer/sentencepiece/sentencepiece_model.h"
#include "millrace/tokenizer/tokenizer.h"

namespace millrace::tokenizer {

/// Loads a model from the bytes of its file, which need not outlive the call.
/// Errors: kInvalidArgument if the bytes are not a SentencePiece model; kUnsupported for word and char models, unused
/// pieces in BPE models, and a character map for decoded text.
Result<std::shared_ptr<const Tokenizer>> LoadSentencePiece(ByteSpan model, std::string fingerprint);

/// Makes a tokenizer from a model that was read from a file of another format. Errors: those of LoadSentencePiece().
Result<std::shared_ptr<const Tokenizer>> MakeSentencePiece(const SentencePieceModel& model, std::string fingerprint);

}  // namespace millrace::tokenizer
