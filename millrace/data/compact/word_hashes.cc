#include "millrace/data/compact/word_hashes.h"

#include <algorithm>

#include "millrace/base/hash/random.h"

namespace millrace::data {
namespace {

enum class CharacterClass { kSeparator, kLetter, kIdeograph };

struct CharacterRange {
  char32_t first, last;
  CharacterClass holds;
};
/// Ascending. Characters above U+007F that are in no range are letters. The blocks are those of Unicode 15.
constexpr CharacterRange kRanges[] = {
    {0x80, 0xA9, CharacterClass::kSeparator},       {0xAB, 0xB4, CharacterClass::kSeparator},
    {0xB6, 0xB9, CharacterClass::kSeparator},       {0xBB, 0xBF, CharacterClass::kSeparator},
    {0xD7, 0xD7, CharacterClass::kSeparator},       {0xF7, 0xF7, CharacterClass::kSeparator},
    {0x2000, 0x206F, CharacterClass::kSeparator},  // general punctuation
    {0x2190, 0x2BFF, CharacterClass::kSeparator},  // arrows, mathematics, boxes and other symbols
    {0x3000, 0x3004, CharacterClass::kSeparator},  // punctuation of Chinese and Japanese
    {0x3005, 0x3007, CharacterClass::kIdeograph},   {0x3008, 0x303F, CharacterClass::kSeparator},
    {0x3040, 0x30FF, CharacterClass::kIdeograph},  // kana
    {0x3400, 0x9FFF, CharacterClass::kIdeograph},   {0xF900, 0xFAFF, CharacterClass::kIdeograph},
    {0xFE30, 0xFE4F, CharacterClass::kSeparator},  // vertical punctuation
    {0xFF01, 0xFF0F, CharacterClass::kSeparator},   {0xFF1A, 0xFF20, CharacterClass::kSeparator},
    {0xFF3B, 0xFF40, CharacterClass::kSeparator},   {0xFF5B, 0xFF65, CharacterClass::kSeparator},
    {0x1F000, 0x1FAFF, CharacterClass::kSeparator},  // emoji
    {0x20000, 0x3FFFF, CharacterClass::kIdeograph},
};

CharacterClass ClassOf(char32_t character) {
  const auto* after = std::ranges::upper_bound(kRanges, character, {}, &CharacterRange::first);
  if (after == std::begin(kRanges) || character > std::prev(after)->last) return CharacterClass::kLetter;
  return std::prev(after)->holds;
}

constexpr std::uint64_t kFnvOffset = 0xCBF29CE484222325, kFnvPrime = 0x100000001B3;  // FNV-1a, 64 bits
constexpr std::uint64_t kRunFactor = 0x9E3779B97F4A7C15;  ///< odd: the golden ratio, as in SplitMix64

}  // namespace

void HashWords(std::string_view text, std::vector<std::uint64_t>& words) {
  words.clear();
  std::uint64_t hash = kFnvOffset;
  bool in_word = false;
  auto add = [&](unsigned char byte) {
    hash = (hash ^ byte) * kFnvPrime;
    in_word = true;
  };
  auto end_word = [&] {
    if (in_word) words.push_back(Mix64(hash));
    hash = kFnvOffset;
    in_word = false;
  };
  for (std::size_t at = 0; at < text.size();) {
    const auto lead = static_cast<unsigned char>(text[at]);
    if (lead < 0x80) {
      const auto lower = static_cast<unsigned char>(lead | 0x20);
      const bool is_letter = lower >= 'a' && lower <= 'z';
      if (is_letter || (lead >= '0' && lead <= '9')) {
        add(is_letter ? lower : lead);
      } else {
        end_word();
      }
      ++at;
      continue;
    }
    const std::size_t bytes = std::min<std::size_t>(lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4, text.size() - at);
    char32_t character = lead & (0x7FU >> bytes);
    for (std::size_t i = 1; i < bytes; ++i)
      character = character << 6 | (static_cast<unsigned char>(text[at + i]) & 0x3F);
    const CharacterClass holds = ClassOf(character);
    if (holds != CharacterClass::kLetter) end_word();
    if (holds != CharacterClass::kSeparator) {
      for (std::size_t i = 0; i < bytes; ++i) add(static_cast<unsigned char>(text[at + i]));
    }
    if (holds == CharacterClass::kIdeograph) end_word();
    at += bytes;
  }
  end_word();
}

void HashRuns(std::span<const std::uint64_t> words, std::size_t length, std::vector<std::uint64_t>& runs) {
  runs.clear();
  length = std::min(length, words.size());
  if (length == 0) return;
  // A polynomial in kRunFactor, modulo 2^64. From one run to the next, the first word leaves and another one enters.
  std::uint64_t first_factor = 1, polynomial = 0;
  for (std::size_t i = 0; i + 1 < length; ++i) first_factor *= kRunFactor;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (i >= length) polynomial -= words[i - length] * first_factor;
    polynomial = polynomial * kRunFactor + words[i];
    if (i + 1 >= length) runs.push_back(Mix64(polynomial + length));
  }
}

}  // namespace millrace::data
