// Where what a reader takes for one character ends: extended grapheme clusters (UAX 29), as Rust's unicode-segmentation
// finds them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "millrace/tokenizer/tables/code_point_map.h"

namespace millrace::tokenizer {

extern const std::uint32_t kGraphemeRanges[];
extern const std::size_t kGraphemeRangeCount;

/// What the rules ask of a character; the order of tools/grapheme_tables.py.
enum class Grapheme : std::uint8_t {
  kOther,
  kControl,     ///< carriage return and line feed among them
  kLinker,      ///< extends, and links Indic consonants
  kExtend,      ///< extends, and may stand in an Indic conjunct
  kLoneExtend,  ///< extends
  kJoiner,      ///< U+200D
  kRegion,
  kPrepend,
  kSpacing,
  kLeading,  ///< Hangul, this and the next four
  kVowel,
  kTrailing,
  kOpenSyllable,
  kClosedSyllable,
  kPicture,
  kConsonant,  ///< Indic, of conjuncts
};

/// Finds clusters. Immutable; any thread. Bytes that are no part of valid UTF-8 are clusters of their own.
class Graphemes {
 public:
  Graphemes();

  /// Bytes of the cluster that `text` begins with; not empty.
  std::size_t Length(std::string_view text) const;

 private:
  struct Context;
  Grapheme KindOf(char32_t code) const;
  static bool Joins(const Context& before, Grapheme next);

  CodePointMap<Grapheme> kinds_;
};

}  // namespace millrace::tokenizer
