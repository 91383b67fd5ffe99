// Sets of characters as ranges of code points, for the patterns in tokenizer.json files.
#pragma once

#include <optional>
#include <string_view>
#include <utility>
#include <vector>

namespace millrace::tokenizer {

/// The first and the last code point of each range.
using CharacterRanges = std::vector<std::pair<char32_t, char32_t>>;

/// Returns the same characters as ascending ranges that do not touch. The other functions take any ranges, and return
/// such ranges.
CharacterRanges Sorted(CharacterRanges ranges);
CharacterRanges Inverted(CharacterRanges ranges);
CharacterRanges Intersection(CharacterRanges a, CharacterRanges b);

/// Returns whether the ranges are one character.
bool IsSingle(const CharacterRanges& ranges);

CharacterRanges BlankRanges();  ///< \s
CharacterRanges WordRanges();   ///< \w as Oniguruma has it
/// Returns the characters of \p{name}: a category, or the script Han in Unicode 16.0. A name of one letter stands for
/// all categories with this first letter. Nothing if the name is unknown, or is of the categories C.
std::optional<CharacterRanges> CategoryRanges(std::string_view name);

/// Returns the characters, and those that differ from them in case alone. REQUIRES: all are ASCII.
CharacterRanges Folded(const CharacterRanges& ranges);
/// Returns whether one character differs from the two in case alone, such as "ß" from "ss".
bool FoldTogether(char32_t first, char32_t second);

}  // namespace millrace::tokenizer
