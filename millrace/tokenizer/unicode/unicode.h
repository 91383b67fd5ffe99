// The properties of characters that tokenizers need, of Unicode 16.0.
#pragma once

#include <cstddef>
#include <cstdint>

#include "millrace/tokenizer/tables/code_point_map.h"

namespace millrace::tokenizer {

/// General categories, in the order of tools/unicode_tables.py.
enum class Category : std::uint8_t {
  kCn,
  kCc,
  kCf,
  kCo,
  kCs,
  kLl,
  kLm,
  kLo,
  kLt,
  kLu,
  kMc,
  kMe,
  kMn,
  kNd,
  kNl,
  kNo,
  kPc,
  kPd,
  kPe,
  kPf,
  kPi,
  kPo,
  kPs,
  kSc,
  kSk,
  kSm,
  kSo,
  kZl,
  kZp,
  kZs,
};

/// The classes of characters in the patterns of pre-tokenizers, as bits.
enum CharClass : std::uint8_t {
  kOther = 0,
  kLetter = 1,   ///< \p{L}
  kNumber = 2,   ///< \p{N}
  kSpace = 4,    ///< \s: the property White_Space
  kNewline = 8,  ///< [\r\n]; kSpace is set too
  kMark = 16,    ///< \p{M}
  kUpper = 32,   ///< \p{Lu} and \p{Lt}; kLetter is set too
  kLower = 64,   ///< \p{Ll}; kLetter is set too
};

/// Each is a first code point, shifted by 5 bits, and the category from there on. Made by tools/unicode_tables.py.
extern const std::uint32_t kCategoryRanges[];
extern const std::size_t kCategoryRangesCount;

/// Returns whether the character has the property White_Space.
bool IsWhiteSpace(char32_t code);

/// Returns the CharClass bits of every code point.
CodePointMap<std::uint8_t> MakeCharClasses();

/// Numbers that Unicode 17.0 added. The reference tokenizers know them where they do not use a regular expression:
/// their pre-tokenizer Digits divides a text at them, but \p{N} does not match them.
bool IsUnicode17Number(char32_t code);

/// Sets 1 for each character of a word (\w in regular expressions).
void FillWordCharacters(CodePointMap<std::uint8_t>& words);

/// Calls visit(first, end, category) for each range of code points of one category.
template <class Visit>
void ForEachCategoryRange(Visit visit) {
  for (std::size_t i = 0; i < kCategoryRangesCount; ++i) {
    char32_t end = i + 1 < kCategoryRangesCount ? kCategoryRanges[i + 1] >> 5 : 0x110000;
    visit(static_cast<char32_t>(kCategoryRanges[i] >> 5), end, static_cast<Category>(kCategoryRanges[i] & 31));
  }
}

}  // namespace millrace::tokenizer
