#include "millrace/tokenizer/bpe/adjacent_characters.h"

#include <algorithm>

namespace millrace::tokenizer {
namespace {

bool Continues(char byte) { return (byte & 0xC0) == 0x80; }

/// Returns how many bytes at the end of `token` belong to an incomplete character.
std::size_t CutOff(std::string_view token) {
  for (std::size_t back = 1; back <= 3 && back <= token.size(); ++back) {
    auto byte = static_cast<std::uint8_t>(token[token.size() - back]);
    if ((byte & 0xC0) == 0x80) continue;
    std::size_t length = byte < 0xC2 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : byte < 0xF5 ? 4 : 1;
    return length > back ? back : 0;
  }
  return 0;
}

}  // namespace

void AdjacentCharacters::AddToken(std::string_view token) {
  std::size_t begin = 0;
  while (begin < token.size() && begin < 3 && Continues(token[begin])) ++begin;
  std::string_view ending = token.substr(0, begin);  // the rest of a character that begins before the token
  std::string_view beginning = token.substr(token.size() - std::min(CutOff(token), token.size() - begin));
  std::string_view whole = token.substr(begin, token.size() - begin - beginning.size());
  if (!ending.empty() || !beginning.empty()) parts_ = true;
  if (!ending.empty() && begin < token.size()) AddEndingsOf(ending);
  if (!beginning.empty() && beginning.size() < token.size()) AddBeginningsOf(beginning);

  char32_t previous = kInvalid;
  for (const char* at = whole.data(); at != whole.data() + whole.size();) {
    DecodedCharacter character = DecodeUtf8(at, whole.data() + whole.size());
    // Pairs with an invalid byte are not recorded, because text is never cut beside an invalid byte.
    if (character.code != kInvalid) {
      if (previous != kInvalid) AddPair(previous, character.code);
      if (at == whole.data() && !ending.empty()) sides_.At(character.code) |= kAfter;
      if (at + character.length == whole.data() + whole.size() && !beginning.empty()) {
        sides_.At(character.code) |= kBefore;
      }
    }
    previous = character.code;
    at += character.length;
  }
}

void AdjacentCharacters::AddPair(char32_t left, char32_t right) {
  if ((left | right) < 0x80) ascii_[left << 7 | right] = true;
  sides_.At(left) |= kBefore;
  sides_.At(right) |= kAfter;
  std::uint32_t bit = FilterBit(left, right);
  pairs_[bit / 64] |= 1ull << (bit % 64);
}

void AdjacentCharacters::AddEndingsOf(std::string_view ending) {
  char32_t low = 0;
  for (char byte : ending) low = low << 6 | (byte & 0x3F);
  // Records all characters below U+10000 that end with these bytes. Characters above join with everything.
  char32_t step = 1u << (6 * ending.size());
  for (char32_t code = low; code < 0x10000; code += step) {
    if (code >= 0x80) sides_.At(code) |= kBefore | kBeforeAny;
  }
}

void AdjacentCharacters::AddBeginningsOf(std::string_view beginning) {
  auto lead = static_cast<std::uint8_t>(beginning[0]);
  int length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  if (length == 4) return;
  char32_t first = lead & (length == 2 ? 0x1F : 0x0F);
  for (char byte : beginning.substr(1)) first = first << 6 | (byte & 0x3F);
  int missing = 6 * (length - static_cast<int>(beginning.size()));
  for (char32_t code = first << missing; code < (first + 1) << missing; ++code) {
    sides_.At(code) |= kAfter | kAfterAny;
  }
}

}  // namespace millrace::tokenizer
