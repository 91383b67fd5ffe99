// How DeepSeek's models before V3 split a text into words, written out by hand.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "millrace/tokenizer/tables/code_point_map.h"
#include "millrace/tokenizer/unicode/utf8.h"

namespace millrace::tokenizer {

/// Patterns one after another, each on every word that the ones before it left or found:
///
///   [\r\n], \s?L+, \s?P+, \s+$, [一-龥ࠀ-一가-\uD7FF]+, and then every number (\p{N}) by itself
///
/// DeepSeek LLM's, also V2's: L are the cased letters of some scripts, P is [!-/:-~！-／：-～‘-‟　-。], where ASCII's
/// letters are again, so that "né" is two words. DeepSeek Coder's: L is \p{L}, P is \p{P}, and there is no \s+$.
/// Immutable; any thread. A byte that is no part of valid UTF-8 is a character that nothing matches.
class RunSplitter {
 public:
  enum class Kind : std::uint8_t { kLlm, kCoder };
  explicit RunSplitter(Kind kind);

  /// The regular expressions, but the one for numbers, as the models' files have them.
  static std::vector<std::string> Regexes(Kind kind);

  /// The end of the word that begins at `at`, which is before `end`, the text's end.
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
  struct Look {
    std::uint8_t bits = kNothing;
    std::uint8_t length = 0;
    bool Is(std::uint8_t any) const { return (bits & any) != 0; }
  };
  struct Word;  ///< what there is to know of a word from its beginning on

  Look LookAt(const char* at, const char* end) const;
  bool BeginsLetters(Look look, const char* at, const char* end) const;
  Word Begin(const char* at, const char* end) const;
  bool EndsAt(const Word& word, Look look, const char* at, const char* end) const;

  const bool cuts_blank_ends_;
  CodePointMap<std::uint8_t> bits_;
};

}  // namespace millrace::tokenizer
