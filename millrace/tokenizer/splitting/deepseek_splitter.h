// How DeepSeek V3 and R1 split a text into words, written out by hand.
#pragma once

#include <cstdint>

#include "millrace/tokenizer/tables/code_point_map.h"
#include "millrace/tokenizer/unicode/utf8.h"

namespace millrace::tokenizer {

/// Three patterns, each on what the ones before it left or found: \p{N}{1,3}, then [一-龥぀-ゟ゠-ヿ]+, then
///
///   [!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|
///    ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
///
/// What the last does not match is a word up to where it does. Numbers and East Asian runs end what it sees. Immutable;
/// any thread. A byte that is no part of valid UTF-8 is a character that nothing matches.
class DeepSeekSplitter {
 public:
  DeepSeekSplitter();

  /// The end of the word that begins at `at`, which is before `end`, the text's end.
  const char* WordEnd(const char* at, const char* end) const;

 private:
  enum Kind : std::uint8_t { kOther, kLetter, kPunctuation, kSpace, kNewline, kNumber, kEnd };
  static constexpr std::uint8_t kEast = 0x80;  ///< in one of the ranges of the second pattern
  struct Look {
    Kind kind = kEnd;
    bool east = false;
    std::uint8_t length = 0;
  };
  Look LookAt(const char* at, const char* end) const;
  /// What the last pattern sees: kEnd where a number or a run of the other script begins.
  Look LookWithin(bool east, const char* at, const char* end) const;
  const char* Skip(bool east, Kind kind, const char* at, const char* end) const;
  const char* PunctuationEnd(bool east, const char* at, const char* end) const;
  const char* SpaceEnd(bool east, const char* at, const char* end) const;

  CodePointMap<std::uint8_t> kinds_;
};

}  // namespace millrace::tokenizer
