#include "millrace/tokenizer/unicode/unicode.h"

#include <algorithm>
#include <iterator>

namespace millrace::tokenizer {
namespace {

constexpr char32_t kWhiteSpace[] = {0x09,   0x0A,   0x0B,   0x0C,   0x0D,   0x20,   0x85,   0xA0,   0x1680,
                                    0x2000, 0x2001, 0x2002, 0x2003, 0x2004, 0x2005, 0x2006, 0x2007, 0x2008,
                                    0x2009, 0x200A, 0x2028, 0x2029, 0x202F, 0x205F, 0x3000};

std::uint8_t ClassOf(Category category) {
  switch (category) {
    case Category::kLl:
      return kLetter | kLower;
    case Category::kLt:
    case Category::kLu:
      return kLetter | kUpper;
    case Category::kLm:
    case Category::kLo:
      return kLetter;
    case Category::kMc:
    case Category::kMe:
    case Category::kMn:
      return kMark;
    case Category::kNd:
    case Category::kNl:
    case Category::kNo:
      return kNumber;
    default:
      return kOther;
  }
}

}  // namespace

bool IsWhiteSpace(char32_t code) { return std::ranges::binary_search(kWhiteSpace, code); }

bool IsUnicode17Number(char32_t code) {
  return (code >= 0x11DE0 && code <= 0x11DE9) || (code >= 0x16FF4 && code <= 0x16FF6);
}

CodePointMap<std::uint8_t> MakeCharClasses() {
  CodePointMap<std::uint8_t> classes(kOther);
  ForEachCategoryRange([&](char32_t first, char32_t end, Category category) {
    if (ClassOf(category) != kOther) classes.Fill(first, end, ClassOf(category));
  });
  for (char32_t code : kWhiteSpace) classes.At(code) = kSpace;
  classes.At('\r') |= kNewline;
  classes.At('\n') |= kNewline;
  return classes;
}

void FillWordCharacters(CodePointMap<std::uint8_t>& words) {
  ForEachCategoryRange([&](char32_t first, char32_t end, Category category) {
    bool listed = category == Category::kNd || category == Category::kNl || category == Category::kPc;
    if (listed || (ClassOf(category) & (kLetter | kMark))) words.Fill(first, end, 1);
  });
  words.Fill(0x200C, 0x200E, 1);  // joiners
  for (char32_t first : {0x24B6, 0x24D0, 0x1F130, 0x1F150, 0x1F170})
    words.Fill(first, first + 26, 1);  // A in a circle, …
}

}  // namespace millrace::tokenizer
