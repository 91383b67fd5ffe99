// Reads the file of a SentencePiece model, without the protobuf library.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/bytes.h"
#include "millrace/base/result.h"
#include "millrace/tokenizer/vocabulary/added_tokens.h"

namespace millrace::tokenizer {

/// U+2581, which stands for a space in pieces.
inline constexpr std::string_view kSpaceMark = "\xE2\x96\x81";
inline constexpr char32_t kSpaceMarkCode = 0x2581;

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
  bool prefix_every_part =
      true;                   ///< if special tokens divide a text, each part gets the dummy prefix, not only the first
  bool prefix_marked = true;  ///< a part that begins with a space gets the dummy prefix too
  bool whole_byte_runs = false;  ///< if a run of byte tokens is not UTF-8 as a whole, each byte decodes to U+FFFD
  int pieces = 0;
  std::string unk_piece = "<unk>", bos_piece = "<s>", eos_piece = "</s>", pad_piece = "<pad>";
};

struct SentencePieceModel {
  enum class Type { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6 };
  struct ScoredPiece {
    std::string_view text;  ///< in the model's bytes
    float score = 0;
    Type type = Type::kNormal;
  };
  /// A merge in a model that lists its merges (Hugging Face's JSON). SentencePiece's own models have scores instead.
  struct Merge {
    std::int32_t left, right, merged;
  };
  SentencePieceTraits traits;
  std::vector<ScoredPiece> pieces;
  std::optional<std::vector<Merge>> merges;  ///< in order of rank
  /// The added tokens, if the model lists them. Else every control and unknown piece is a special token.
  std::optional<std::vector<AddedToken>> added;
  ByteSpan character_map;  ///< in the model's bytes
};

/// Returns the piece with a space for each U+2581.
std::string MarksToSpaces(std::string_view piece);

/// Parses the bytes of a model's file. The result points into `model`.
/// Errors: kInvalidArgument if the bytes are not a SentencePiece model.
Result<SentencePieceModel> ReadSentencePieceModel(ByteSpan model);

}  // namespace millrace::tokenizer
