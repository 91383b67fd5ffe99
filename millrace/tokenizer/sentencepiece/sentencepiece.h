// SentencePiece models behind tokenizer.h.
#pragma once

#include <memory>
#include <string>

#include "millrace/tokenizer/sentencepiece/sentencepiece_model.h"
#include "millrace/tokenizer/tokenizer.h"

namespace millrace::tokenizer {

/// Loads a model. Fails with kInvalidArgument on anything that is not a SentencePiece model, and with kUnsupported on
/// one that needs something that is not done here: word and char models, unused pieces, a map for decoded text.
Result<std::shared_ptr<const Tokenizer>> LoadSentencePiece(ByteSpan model, std::string fingerprint);

/// The same of a model that was read from a file of another format.
Result<std::shared_ptr<const Tokenizer>> MakeSentencePiece(const SentencePieceModel& model, std::string fingerprint);

}  // namespace millrace::tokenizer
