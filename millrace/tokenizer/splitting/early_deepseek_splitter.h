// Splits a text into words as the regular expressions of DeepSeek's models before V3 do, without a regular-expression
// engine.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "millrace/tokenizer/tables/code_point_map.h"
#include "millrace/tokenizer/unicode/utf8.h"

namespace millrace::tokenizer {

/// Gives the words that this list of patterns gives. The first pattern cuts the text: each match is a word, and so is
/// each text between two matches. Every later pattern cuts each of these words in the same way.
///
///   [\r\n], \s?L+, \s?P+, \s+$, [一-龥ࠀ-一가-\uD7FF]+, and then every number (\p{N}) by itself
///
/// In DeepSeek LLM and V2 (kLlm), L is the cased letters of some scripts. P is [!-/:-~！-／：-～‘-‟　-。], which has
/// the letters of ASCII, too. So "né" is two words. In DeepSeek Coder (kCoder), L is \p{L}, P is \p{P}, and there is no
/// pattern \s+$. No pattern matches an invalid byte. Immutable; any thread.
class EarlyDeepSeekSplitter {
 public:
  enum class Variant : std::uint8_t { kLlm, kCoder };
  explicit EarlyDeepSeekSplitter(Variant kind);

  /// Returns the regular expressions as the files of the models write them, without the one for numbers.
  static std::vector<std::string> Regexes(Variant kind);

  /// Returns the end of the word that begins at `at`. `end` is the end of the text. REQUIRES: `at` < `end`.
  const char* WordEnd(const char* at, const char* end) const;

 private:
  /// The sets of characters that the patterns name. A character may be in several.
  enum Bits : std::uint8_t {
    kLetters = 1,   ///< L
    kMarks = 2,     ///< P
    kEast = 4,      ///< [一-龥ࠀ-一가-\uD7FF]
    kBlank = 8,     ///< \s, without line ends
    kLineEnd = 16,  ///< [\r\n]
    kDigit = 32,    ///< \p{N}
    kNothing = 64   ///< no character: the end of the text
  };
  struct ClassifiedCharacter {
    std::uint8_t bits = kNothing;
    std::uint8_t length = 0;
    bool Is(std::uint8_t any) const { return (bits & any) != 0; }
  };
  struct Word;  ///< the patterns that match at the beginning of a word

  /// Returns the sets and the length of the character at `at`.
  ClassifiedCharacter Classify(const char* at, const char* end) const;
  bool BeginsLetters(ClassifiedCharacter look, const char* at, const char* end) const;
  Word Begin(const char* at, const char* end) const;
  bool EndsAt(const Word& word, ClassifiedCharacter look, const char* at, const char* end) const;

  /// True if the list has the pattern \s+$.
  const bool cuts_blank_ends_;
  CodePointMap<std::uint8_t> bits_;
};

}  // namespace millrace::tokenizer
