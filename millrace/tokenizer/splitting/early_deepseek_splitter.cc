#include "millrace/tokenizer/splitting/early_deepseek_splitter.h"

#include <iterator>
#include <span>

#include "millrace/tokenizer/unicode/unicode.h"

namespace millrace::tokenizer {
namespace {

struct CodeRange {
  char32_t first, last;
};
/// In the order of DeepSeek's file, which does not join neighbouring ranges.
constexpr CodeRange kCasedLetters[] = {
    // clang-format off
    {0x41, 0x5A}, {0x61, 0x7A}, {0xB5, 0xB5}, {0xC0, 0xD6}, {0xD8, 0xF6}, {0xF8, 0x1BA}, {0x1BC, 0x1BF},
    {0x1C4, 0x293}, {0x295, 0x2AF}, {0x370, 0x373}, {0x376, 0x376}, {0x377, 0x377}, {0x37B, 0x37D}, {0x37F, 0x37F},
    {0x386, 0x386}, {0x388, 0x38A}, {0x38C, 0x38C}, {0x38E, 0x3A1}, {0x3A3, 0x3F5}, {0x3F7, 0x481}, {0x48A, 0x52F},
    {0x531, 0x556}, {0x10A0, 0x10C5}, {0x13A0, 0x13F5}, {0x13F8, 0x13FD}, {0x1C90, 0x1CBA}, {0x1CBD, 0x1CBF},
    {0x1D00, 0x1D2B}, {0x1D6B, 0x1D77}, {0x1D79, 0x1D9A}, {0x1E00, 0x1F15}, {0x1F18, 0x1F1D}, {0x1F20, 0x1F45},
    {0x1F48, 0x1F4D}, {0x1F50, 0x1F57}, {0x1F59, 0x1F59}, {0x1F5B, 0x1F5B}, {0x1F5D, 0x1F5D}, {0x1F5F, 0x1F7D},
    {0x1F80, 0x1FB4}, {0x1FB6, 0x1FBC}, {0x1FBE, 0x1FBE}, {0x1FC2, 0x1FC4}, {0x1FC6, 0x1FCC}, {0x1FD0, 0x1FD3},
    {0x1FD6, 0x1FDB}, {0x1FE0, 0x1FEC}, {0x1FF2, 0x1FF4}, {0x1FF6, 0x1FFC}, {0x2102, 0x2102}, {0x2107, 0x2107},
    {0x210A, 0x2113}, {0x2115, 0x2115}, {0x2119, 0x211D}, {0x2124, 0x2124}, {0x2126, 0x2126}, {0x2128, 0x2128},
    {0x212A, 0x212D}, {0x212F, 0x2134}, {0x2139, 0x2139}, {0x213C, 0x213F}, {0x2145, 0x2149}, {0x214E, 0x214E},
    {0x2183, 0x2183}, {0x2184, 0x2184}, {0x2C00, 0x2C7B}, {0x2C7E, 0x2CE4}, {0x2CEB, 0x2CEE}, {0x2CF2, 0x2CF2},
    {0x2CF3, 0x2CF3}, {0xA640, 0xA66D}, {0xA680, 0xA69B}, {0xA722, 0xA76F}, {0xA771, 0xA787}, {0xA78B, 0xA78E},
    {0xAB70, 0xABBF}, {0xFB00, 0xFB06}, {0xFB13, 0xFB17}, {0xFF21, 0xFF3A}, {0xFF41, 0xFF5A}, {0x10400, 0x1044F},
    {0x104B0, 0x104D3}, {0x104D8, 0x104FB}, {0x10C80, 0x10CB2}, {0x10CC0, 0x10CF2}, {0x118A0, 0x118DF},
    {0x1E900, 0x1E943},
    // clang-format on
};
constexpr CodeRange kMarkRanges[] = {{0x21, 0x2F},     {0x3A, 0x7E},     {0xFF01, 0xFF0F},
                                     {0xFF1A, 0xFF5E}, {0x2018, 0x201F}, {0x3000, 0x3002}};
constexpr CodeRange kEasternRanges[] = {{0x4E00, 0x9FA5}, {0x800, 0x4E00}, {0xAC00, 0xD7FF}};

std::string ToClass(std::span<const CodeRange> ranges) {
  std::string text = "[";
  for (const CodeRange& range : ranges) {
    AppendUtf8(range.first, text);
    if (range.first == range.last) continue;
    text += '-';
    AppendUtf8(range.last, text);
  }
  return text + "]+";
}

}  // namespace

std::vector<std::string> EarlyDeepSeekSplitter::Regexes(Variant kind) {
  const std::string lines = "[\r\n]", blank = "\\s?", east = ToClass(kEasternRanges);
  if (kind == Variant::kCoder) return {lines, blank + "\\p{L}+", blank + "\\p{P}+", east};
  return {lines, blank + ToClass(kCasedLetters), blank + ToClass(kMarkRanges), "\\s+$", east};
}

EarlyDeepSeekSplitter::EarlyDeepSeekSplitter(Variant kind) : cuts_blank_ends_(kind == Variant::kLlm), bits_(0) {
  ForEachCategoryRange([&](char32_t first, char32_t end, Category category) {
    std::uint8_t bits = 0;
    if (category >= Category::kNd && category <= Category::kNo) bits = kDigit;
    if (kind == Variant::kCoder && category >= Category::kLl && category <= Category::kLu) bits = kLetters;
    if (kind == Variant::kCoder && category >= Category::kPc && category <= Category::kPs) bits = kMarks;
    for (char32_t code = first; code < end; ++code) {
      if (const auto all = IsUnicode17Number(code) ? static_cast<std::uint8_t>(kDigit) : bits; all != 0)
        bits_.At(code) = all;
    }
  });
  auto add = [&](std::span<const CodeRange> ranges, Bits bit) {
    for (const CodeRange& range : ranges) {
      for (char32_t code = range.first; code <= range.last; ++code) bits_.At(code) |= bit;
    }
  };
  if (kind == Variant::kLlm) {
    add(kCasedLetters, kLetters);
    add(kMarkRanges, kMarks);
  }
  add(kEasternRanges, kEast);
  for (char32_t code = 0; code <= 0x3000; ++code) {
    if (IsWhiteSpace(code)) bits_.At(code) |= kBlank;
  }
  bits_.At('\r') = bits_.At('\n') = kLineEnd;  // no other pattern matches these
}

EarlyDeepSeekSplitter::ClassifiedCharacter EarlyDeepSeekSplitter::Classify(const char* at, const char* end) const {
  if (at == end) return {};
  const DecodedCharacter character = DecodeUtf8(at, end);
  const std::uint8_t bits = character.code == kInvalid ? std::uint8_t{0} : bits_[character.code];
  return {bits, static_cast<std::uint8_t>(character.length)};
}

/// Returns true if \s?L+ matches at `at`. REQUIRES: `at` is not inside a match.
bool EarlyDeepSeekSplitter::BeginsLetters(ClassifiedCharacter look, const char* at, const char* end) const {
  return look.Is(kLetters) || (look.Is(kBlank) && Classify(at + look.length, end).Is(kLetters));
}

struct EarlyDeepSeekSplitter::Word {
  ClassifiedCharacter first;
  bool letters = false;  ///< a match of \s?L+, else the text between two matches
  bool marks = false;    ///< a match of \s?P+ in that, else the text between two matches
};

EarlyDeepSeekSplitter::Word EarlyDeepSeekSplitter::Begin(const char* at, const char* end) const {
  Word word{.first = Classify(at, end)};
  word.letters = BeginsLetters(word.first, at, end);
  word.marks = word.first.Is(kMarks);
  if (!word.marks && word.first.Is(kBlank)) {
    const char* next = at + word.first.length;
    const ClassifiedCharacter look = Classify(next, end);
    word.marks = look.Is(kMarks) && word.letters == BeginsLetters(look, next, end);
  }
  return word;
}

/// Returns true if the first three patterns end the word in front of `at`. REQUIRES: `at` is not the word's start.
bool EarlyDeepSeekSplitter::EndsAt(const Word& word, ClassifiedCharacter look, const char* at, const char* end) const {
  if (look.Is(kNothing | kLineEnd)) return true;
  if (word.letters ? !look.Is(kLetters) : BeginsLetters(look, at, end)) return true;
  if (word.marks || look.Is(kMarks)) return word.marks != look.Is(kMarks);
  if (!look.Is(kBlank)) return false;
  const char* next = at + look.length;
  const ClassifiedCharacter following = Classify(next, end);
  return following.Is(kMarks) && !BeginsLetters(following, next, end);
}

const char* EarlyDeepSeekSplitter::WordEnd(const char* at, const char* end) const {
  const Word word = Begin(at, end);
  const char* next = at + word.first.length;
  if (word.first.Is(kLineEnd | kDigit)) return next;
  const char* blanks = nullptr;  // start of the blanks at the word's end; null: none, or the whole word
  bool all_blank = word.first.Is(kBlank);
  const char* cut = nullptr;  // where the patterns after \s+$ cut the word
  while (true) {
    const ClassifiedCharacter look = Classify(next, end);
    if (EndsAt(word, look, next, end)) return cuts_blank_ends_ && blanks ? blanks : cut ? cut : next;
    if (!cut && (look.Is(kDigit) || look.Is(kEast) != word.first.Is(kEast))) cut = next;
    if (!look.Is(kBlank)) {
      if (cut) return cut;
      blanks = nullptr;
      all_blank = false;
    } else if (!blanks && !all_blank) {
      blanks = next;
    }
    if (cut && (!blanks || !cuts_blank_ends_)) return cut;
    next += look.length;
  }
}

}  // namespace millrace::tokenizer
