#include "millrace/tokenizer/splitting/deepseek_splitter.h"

#include "millrace/tokenizer/unicode/unicode.h"

namespace millrace::tokenizer {
namespace {

constexpr int kLongestNumber = 3;  // \p{N}{1,3}
constexpr char32_t kEastRanges[][2] = {{0x4E00, 0x9FA6}, {0x3040, 0x3100}};

bool IsAsciiLetter(char c) { return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z'); }

}  // namespace

DeepSeekSplitter::DeepSeekSplitter() : kinds_(kOther) {
  ForEachCategoryRange([&](char32_t first, char32_t end, Category category) {
    CharacterKind kind = kOther;
    if (category >= Category::kLl && category <= Category::kMn) kind = kLetter;  // marks too
    if (category >= Category::kNd && category <= Category::kNo) kind = kNumber;
    if (category >= Category::kPc && category <= Category::kSo) kind = kPunctuation;
    if (kind == kOther && category < Category::kZl) return;
    for (char32_t code = first; code < end; ++code) {
      const CharacterKind own = IsWhiteSpace(code) ? kSpace : kind;
      if (own != kOther) kinds_.At(code) = own;
    }
  });
  for (char32_t code = 0; code < 0x100; ++code) {
    if (IsWhiteSpace(code)) kinds_.At(code) = kSpace;  // control characters among them
  }
  kinds_.At('\r') = kinds_.At('\n') = kNewline;
  for (auto [first, end] : kEastRanges) {
    for (char32_t code = first; code < end; ++code) kinds_.At(code) |= kEast;
  }
}

DeepSeekSplitter::ClassifiedCharacter DeepSeekSplitter::Classify(const char* at, const char* end) const {
  const DecodedCharacter character = DecodeUtf8(at, end);
  if (character.code == kInvalid) return {kOther, false, 1};
  const std::uint8_t kind = kinds_[character.code];
  return {static_cast<CharacterKind>(kind & ~kEast), (kind & kEast) != 0, static_cast<std::uint8_t>(character.length)};
}

DeepSeekSplitter::ClassifiedCharacter DeepSeekSplitter::ClassifyWithin(bool east, const char* at,
                                                                       const char* end) const {
  if (at == end) return {};
  const ClassifiedCharacter look = Classify(at, end);
  return look.kind == kNumber || look.east != east ? ClassifiedCharacter{} : look;
}

const char* DeepSeekSplitter::Skip(bool east, CharacterKind kind, const char* at, const char* end) const {
  for (ClassifiedCharacter look = ClassifyWithin(east, at, end); look.kind == kind;
       look = ClassifyWithin(east, at, end))
    at += look.length;
  return at;
}

/// Returns the end of a word of punctuation. `at` is behind its first character, or behind the space in front.
const char* DeepSeekSplitter::PunctuationEnd(bool east, const char* at, const char* end) const {
  return Skip(east, kNewline, Skip(east, kPunctuation, at, end), end);
}

/// Returns the end of white space that does not belong to a following word.
const char* DeepSeekSplitter::SpaceEnd(bool east, const char* at, const char* end) const {
  const char *last = at, *after = at, *behind_newline = nullptr;
  ClassifiedCharacter look = ClassifyWithin(east, after, end);
  while (look.kind == kSpace || look.kind == kNewline) {
    last = after;
    after += look.length;
    if (look.kind == kNewline) behind_newline = after;
    look = ClassifyWithin(east, after, end);
  }
  if (behind_newline) return behind_newline;
  return look.kind == kEnd || last == at ? after : last;
}

const char* DeepSeekSplitter::WordEnd(const char* at, const char* end) const {
  const ClassifiedCharacter look = Classify(at, end);
  const bool east = look.east;
  const char* next = at + look.length;
  if (look.kind == kNumber) {
    for (int i = 1; i < kLongestNumber && next != end; ++i) {
      const ClassifiedCharacter digit = Classify(next, end);
      if (digit.kind != kNumber) break;
      next += digit.length;
    }
    return next;
  }
  if (look.kind == kLetter) return Skip(east, kLetter, next, end);
  if (look.kind == kPunctuation) {
    if (static_cast<std::uint8_t>(*at) >= 0x80 || next == end || !IsAsciiLetter(*next)) {
      return PunctuationEnd(east, next, end);
    }
    while (next != end && IsAsciiLetter(*next)) ++next;
    return next;
  }
  const ClassifiedCharacter following = ClassifyWithin(east, next, end);
  if (look.kind != kNewline && following.kind == kLetter) return Skip(east, kLetter, next, end);
  if (*at == ' ' && following.kind == kPunctuation) return PunctuationEnd(east, next, end);
  if (look.kind != kOther) return SpaceEnd(east, at, end);
  // Up to the beginning of a word.
  while (true) {
    const ClassifiedCharacter here = ClassifyWithin(east, next, end);
    if (here.kind != kOther || ClassifyWithin(east, next + here.length, end).kind == kLetter) return next;
    next += here.length;
  }
}

}  // namespace millrace::tokenizer
