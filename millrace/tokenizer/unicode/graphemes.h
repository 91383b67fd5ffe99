// Finds extended grapheme clusters: the characters as a reader sees them (Unicode Standard Annex 29). The result is
// that of Rust's unicode-segmentation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "millrace/tokenizer/tables/code_point_map.h"

namespace millrace::tokenizer {

/// The ranges of equal Grapheme, in order. An entry holds the first code point of a range (upper 27 bits) and the
/// Grapheme of the range (lower 5 bits). The range ends where the next one begins. Made by tools/unicode_tables.py.
extern const std::uint32_t kGraphemeRanges[];
extern const std::size_t kGraphemeRangesCount;

/// The property Grapheme_Cluster_Break of a character, with the properties of emoji and Indic conjuncts that the rules
/// need. The order is that of GRAPHEMES in tools/unicode_tables.py.
enum class Grapheme : std::uint8_t {
  kOther,
  kControl,         ///< Control, CR, LF
  kLinker,          ///< Extend that also links the consonants of an Indic conjunct
  kExtend,          ///< Extend that may stand in an Indic conjunct
  kLoneExtend,      ///< Extend that may not stand in an Indic conjunct
  kJoiner,          ///< ZWJ, the zero-width joiner U+200D
  kRegion,          ///< Regional_Indicator: two of them make a flag
  kPrepend,         ///< Prepend: joins the next character
  kSpacing,         ///< SpacingMark: joins the character before
  kLeading,         ///< L, a leading consonant of Hangul
  kVowel,           ///< V, a vowel of Hangul
  kTrailing,        ///< T, a trailing consonant of Hangul
  kOpenSyllable,    ///< LV, a syllable of Hangul without a trailing consonant
  kClosedSyllable,  ///< LVT, a syllable of Hangul with a trailing consonant
  kPicture,         ///< Extended_Pictographic, such as an emoji
  kConsonant,       ///< a consonant of an Indic conjunct
};

/// Finds the clusters of a text. An invalid byte of UTF-8 is a cluster of its own. Immutable; any thread.
class Graphemes {
 public:
  Graphemes();

  /// Returns the length, in bytes, of the cluster that `text` begins with. REQUIRES: `text` is not empty.
  std::size_t Length(std::string_view text) const;

 private:
  struct Context;
  Grapheme KindOf(char32_t code) const;
  static bool Joins(const Context& before, Grapheme next);

  CodePointMap<Grapheme> kinds_;
};

}  // namespace millrace::tokenizer
