// A SentencePiece model file, read without the protobuf library.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "millrace/base/bytes.h"
#include "millrace/base/result.h"

namespace millrace::tokenizer {

/// The settings of a model that decide how it encodes and decodes. Field numbers: sentencepiece_model.proto.
struct SentencePieceTraits {
  enum class Algorithm { kUnigram = 1, kBpe = 2, kWord = 3, kChar = 4 };
  Algorithm algorithm = Algorithm::kUnigram;
  bool whitespace_is_suffix = false;
  bool byte_fallback = false;
  bool has_character_map = false;
  bool has_reverse_character_map = false;  ///< applied to decoded text
  bool add_dummy_prefix = true;
  bool remove_extra_whitespaces = true;
  bool escape_whitespaces = true;
  int pieces = 0;
  std::string unk_piece = "<unk>", bos_piece = "<s>", eos_piece = "</s>", pad_piece = "<pad>";
};

struct SentencePieceModel {
  enum class Type { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6 };
  struct Piece {
    std::string_view text;  ///< in the model's bytes
    float score = 0;
    Type type = Type::kNormal;
  };
  SentencePieceTraits traits;
  std::vector<Piece> pieces;
  ByteSpan character_map;  ///< in the model's bytes
};

/// Fails with kInvalidArgument unless the bytes have the shape of a SentencePiece model. Never reads out of bounds. The
/// result points into `model`.
Result<SentencePieceModel> ReadSentencePieceModel(ByteSpan model);

}  // namespace millrace::tokenizer
