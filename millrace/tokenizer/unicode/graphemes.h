// Extended grapheme clusters (UAX 29), the characters as a reader sees them, as Rust's unicode-segmentation finds them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "millrace/tokenizer/tables/code_point_map.h"

namespace millrace::tokenizer {

extern const std::uint32_t kGraphemeRanges[];
extern const std::size_t kGraphemeRangeCount;

/// The properties of characters that the rules need, in the order of tools/grapheme_tables.py.
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

/// Finds clusters. An invalid byte is a cluster of its own. Immutable; any thread.
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
