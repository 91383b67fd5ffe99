// Splits a text into words as the regular expressions of DeepSeek V3 and R1 do, without a regular-expression engine.
#pragma once

#include <cstdint>

#include "millrace/tokenizer/tables/code_point_map.h"
#include "millrace/tokenizer/unicode/utf8.h"

namespace millrace::tokenizer {

/// Gives the words that three patterns give. The first pattern cuts the text: each match is a word, and so is each text
/// between two matches. Each later pattern cuts these words in the same way. The patterns are \p{N}{1,3}, then
/// [一-龥぀-ゟ゠-ヿ]+, then
///
///   [!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|
///    ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
///
/// Text between two matches of the last pattern is a word. The last pattern does not see beyond numbers and East Asian
/// runs. Nothing matches an invalid byte. Immutable; any thread.
class DeepSeekSplitter {
 public:
  DeepSeekSplitter();

  /// Returns the end of the word that begins at `at`. `end` is the end of the text. REQUIRES: `at` < `end`.
  const char* WordEnd(const char* at, const char* end) const;

 private:
  enum CharacterKind : std::uint8_t { kOther, kLetter, kPunctuation, kSpace, kNewline, kNumber, kEnd };
  static constexpr std::uint8_t kEast = 0x80;  ///< in one of the ranges of the second pattern
  struct ClassifiedCharacter {
    CharacterKind kind = kEnd;
    bool east = false;
    std::uint8_t length = 0;
  };
  ClassifiedCharacter Classify(const char* at, const char* end) const;
  /// Returns what the last pattern sees: kEnd at the beginning of a number or of a run of the other script.
  ClassifiedCharacter ClassifyWithin(bool east, const char* at, const char* end) const;
  const char* Skip(bool east, CharacterKind kind, const char* at, const char* end) const;
  const char* PunctuationEnd(bool east, const char* at, const char* end) const;
  const char* SpaceEnd(bool east, const char* at, const char* end) const;

  CodePointMap<std::uint8_t> kinds_;
};

}  // namespace millrace::tokenizer
