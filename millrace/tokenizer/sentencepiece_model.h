// What a SentencePiece model file says about itself, read without the protobuf library.
#pragma once

#include <string>

#include "millrace/base/bytes.h"
#include "millrace/base/result.h"

namespace millrace::tokenizer {

/// The settings of a model that decide how its encoder behaves. Field numbers: sentencepiece_model.proto.
struct SentencePieceTraits {
  enum class Algorithm { kUnigram = 1, kBpe = 2, kWord = 3, kChar = 4 };
  Algorithm algorithm = Algorithm::kUnigram;
  bool whitespace_is_suffix = false;
  bool has_character_map = false;
  bool add_dummy_prefix = true;
  bool remove_extra_whitespaces = true;
  bool escape_whitespaces = true;
  int pieces = 0;
};

/// Fails with kInvalidArgument unless the bytes have the shape of a SentencePiece model. Never reads out of bounds.
Result<SentencePieceTraits> ReadSentencePieceTraits(ByteSpan model);

}  // namespace millrace::tokenizer
