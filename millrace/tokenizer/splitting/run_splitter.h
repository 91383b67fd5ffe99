// How DeepSeek's models before V3 split a text into words, as code.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "millrace/tokenizer/tables/code_point_map.h"
#include "millrace/tokenizer/unicode/utf8.h"

namespace millrace::tokenizer {

/// Applies patterns one after another, each to every word that the patterns before left or found:
///
///   [\r\n], \s?L+, \s?P+, \s+$, [一-龥ࠀ-一가-\uD7FF]+, and then every number (\p{N}) by itself
///
/// DeepSeek LLM and V2: L are the cased letters of some scripts, P is [!-/:-~！-／：-～‘-‟　-。], which holds
/// ASCII's letters too, so that "né" is two words. DeepSeek Coder: L is \p{L}, P is \p{P}, and there is no \s+$.
/// Nothing matches an invalid byte. Immutable; any thread.
class RunSplitter {
 public:
  enum class Variant : std::uint8_t { kLlm, kCoder };
  explicit RunSplitter(Variant kind);

  /// Returns the regular expressions as the models' files have them, without the one for numbers.
  static std::vector<std::string> Regexes(Variant kind);

  /// Returns the end of the word that begins at `at`. `end` is the end of the text. REQUIRES: `at` < `end`.
  const char* WordEnd(const char* at, const char* end) const;

 private:
  enum Bits : std::uint8_t {
    kLetters = 1,
    kMarks = 2,
    kEast = 4,
    kBlank = 8,
    kLineEnd = 16,
    kDigit = 32,
    kNothing = 64
  };
  struct ClassifiedCharacter {
    std::uint8_t bits = kNothing;
    std::uint8_t length = 0;
    bool Is(std::uint8_t any) const { return (bits & any) != 0; }
  };
  struct Word;  ///< the properties of a word that its beginning decides

  ClassifiedCharacter Classify(const char* at, const char* end) const;
  bool BeginsLetters(ClassifiedCharacter look, const char* at, const char* end) const;
  Word Begin(const char* at, const char* end) const;
  bool EndsAt(const Word& word, ClassifiedCharacter look, const char* at, const char* end) const;

  const bool cuts_blank_ends_;
  CodePointMap<std::uint8_t> bits_;
};

}  // namespace millrace::tokenizer
