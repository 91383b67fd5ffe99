#include "millrace/tokenizer/huggingface/character_ranges.h"

#include <algorithm>
#include <cstdint>

#include "millrace/tokenizer/unicode/unicode.h"

namespace millrace::tokenizer {
namespace {

constexpr char32_t kLastCode = 0x10FFFF;

/// Returns the characters of the script Han in Unicode 16.0.
CharacterRanges HanRanges() {
  return {{0x2E80, 0x2E99},   {0x2E9B, 0x2EF3},   {0x2F00, 0x2FD5},   {0x3005, 0x3005},   {0x3007, 0x3007},
          {0x3021, 0x3029},   {0x3038, 0x303B},   {0x3400, 0x4DBF},   {0x4E00, 0x9FFF},   {0xF900, 0xFA6D},
          {0xFA70, 0xFAD9},   {0x16FE2, 0x16FE3}, {0x16FF0, 0x16FF1}, {0x20000, 0x2A6DF}, {0x2A700, 0x2B739},
          {0x2B740, 0x2B81D}, {0x2B820, 0x2CEA1}, {0x2CEB0, 0x2EBE0}, {0x2EBF0, 0x2EE5D}, {0x2F800, 0x2FA1D},
          {0x30000, 0x3134A}, {0x31350, 0x323AF}};
}

bool IsAsciiLetter(char32_t code) { return (code >= 'a' && code <= 'z') || (code >= 'A' && code <= 'Z'); }

}  // namespace

CharacterRanges Sorted(CharacterRanges ranges) {
  std::ranges::sort(ranges);
  CharacterRanges merged;
  for (auto [first, last] : ranges) {
    if (!merged.empty() && first <= merged.back().second + 1) {
      merged.back().second = std::max(merged.back().second, last);
    } else {
      merged.emplace_back(first, last);
    }
  }
  return merged;
}

CharacterRanges Inverted(CharacterRanges ranges) {
  CharacterRanges others;
  char32_t next = 0;
  for (auto [first, last] : Sorted(std::move(ranges))) {
    if (next < first) others.emplace_back(next, first - 1);
    next = last + 1;
  }
  if (next <= kLastCode) others.emplace_back(next, kLastCode);
  return others;
}

CharacterRanges Intersection(CharacterRanges a, CharacterRanges b) {
  CharacterRanges neither = Inverted(std::move(a));
  const CharacterRanges others = Inverted(std::move(b));
  neither.insert(neither.end(), others.begin(), others.end());
  return Inverted(std::move(neither));
}

bool IsSingle(const CharacterRanges& ranges) { return ranges.size() == 1 && ranges[0].first == ranges[0].second; }

CharacterRanges WordRanges() {
  CodePointMap<std::uint8_t> words(0);
  FillWordCharacters(words);
  // What Oniguruma knows otherwise: numbers of Latin-1 are in words, and joiners are not.
  for (const char32_t code : {0xB2, 0xB3, 0xB9, 0xBC, 0xBD, 0xBE}) words.At(code) = 1;
  for (const char32_t code : {0x200C, 0x200D}) words.At(code) = 0;
  CharacterRanges ranges;
  for (char32_t code = 0; code <= kLastCode; ++code) {
    if (words[code] == 0) continue;
    if (!ranges.empty() && ranges.back().second + 1 == code) {
      ranges.back().second = code;
    } else {
      ranges.emplace_back(code, code);
    }
  }
  return ranges;
}

CharacterRanges Folded(const CharacterRanges& ranges) {
  CharacterRanges folded = ranges;
  for (const auto& [first, last] : ranges) {
    for (char32_t code = first; code <= last; ++code) {
      if (!IsAsciiLetter(code)) continue;
      folded.emplace_back(code ^ 0x20, code ^ 0x20);
      if ((code | 0x20) == 's') folded.emplace_back(0x17F, 0x17F);    // long s
      if ((code | 0x20) == 'k') folded.emplace_back(0x212A, 0x212A);  // kelvin sign
    }
  }
  return Sorted(std::move(folded));
}

bool FoldTogether(char32_t first, char32_t second) {
  constexpr std::string_view kPairs[] = {"ss", "st", "ff", "fi", "fl"};
  return IsAsciiLetter(first) && IsAsciiLetter(second) && std::ranges::any_of(kPairs, [&](std::string_view pair) {
           return char32_t(pair[0]) == (first | 0x20) && char32_t(pair[1]) == (second | 0x20);
         });
}

CharacterRanges BlankRanges() {
  CharacterRanges ranges;
  for (char32_t code = 0; code <= 0x3000; ++code) {
    if (IsWhiteSpace(code)) ranges.emplace_back(code, code);
  }
  return ranges;
}

std::optional<CharacterRanges> CategoryRanges(std::string_view name) {
  if (name == "Han") return HanRanges();
  constexpr std::string_view kNames = "CnCcCfCoCsLlLmLoLtLuMcMeMnNdNlNoPcPdPePfPiPoPsScSkSmSoZlZpZs";
  if (name.empty() || name.size() > 2 || name[0] == 'C') return std::nullopt;
  CharacterRanges ranges;
  bool known = false;
  for (std::size_t at = 0; at < kNames.size(); at += 2) known |= kNames.substr(at, name.size()) == name;
  if (!known) return std::nullopt;
  ForEachCategoryRange([&](char32_t first, char32_t end, Category category) {
    if (kNames.substr(2 * static_cast<std::size_t>(category), name.size()) == name) ranges.emplace_back(first, end - 1);
  });
  return ranges;
}

}  // namespace millrace::tokenizer
