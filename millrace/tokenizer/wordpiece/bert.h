// Normalizes a text and splits it into words for BERT. Gives the words of Hugging Face's BertNormalizer and
// BertPreTokenizer, in one pass over the characters.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "millrace/tokenizer/tables/code_point_map.h"
#include "millrace/tokenizer/unicode/unicode.h"
#include "millrace/tokenizer/unicode/utf8.h"

namespace millrace::tokenizer {

/// The classes of a character, as bits. tools/unicode_tables.py writes the first five.
enum BertClass : std::uint8_t {
  kBertRemoved = 1,      ///< clean_text removes the character
  kBertSpace = 2,        ///< clean_text replaces the character by a space
  kBertPunctuation = 4,  ///< a word of its own
  kBertStripped = 8,     ///< an accent, which strip_accents removes
  kBertBarrier = 16,     ///< an accent that is not reordered: marks on its two sides are sorted separately
  kBertChinese = 32,     ///< a word of its own with handle_chinese_chars
  kBertBlank = 64,       ///< white space, which divides words
  kBertMark = 128,       ///< a combining mark that strip_accents keeps, and sorts by its combining class
};

/// Made by tools/unicode_tables.py. Classes: code point << 5 | bits, at each change of the bits. Orders: code point
/// << 8 | combining class. Maps: code point << 3 | length, followed by that many code points.
extern const std::uint32_t kBertClasses[], kBertOrders[], kBertStrippedMap[], kBertLowered[];
extern const std::size_t kBertClassesCount, kBertOrdersCount, kBertStrippedMapCount, kBertLoweredCount;

/// Returns the BertClass bits of every code point.
CodePointMap<std::uint8_t> MakeBertClasses();

struct BertOptions {
  bool clean_text = true;
  bool handle_chinese_chars = true;
  bool strip_accents = true;
  bool lowercase = true;
};

/// Finds the words of a text and normalizes them. An invalid byte counts as U+FFFD, which clean_text removes.
/// Immutable; any thread.
class BertWords {
 public:
  explicit BertWords(const BertOptions& options);

  /// Calls visit(word) for each word of the text, in order, until it returns false. `word` is working memory.
  template <class Visit>
  void ForEach(std::string_view text, std::string& word, Visit visit) const {
    Marks marks;
    word.clear();
    bool more = true;
    auto boundary = [&] {
      if (!word.empty()) more = more && visit(std::string_view(word));
      word.clear();
      marks.clear();
    };
    for (const char *at = text.data(), *end = at + text.size(); at != end && more;) {
      auto byte = static_cast<std::uint8_t>(*at);
      if (byte < 0x80 && plain_[byte] != 0) {
        word += plain_[byte];
        if (!marks.empty()) marks.clear();
        ++at;
        continue;
      }
      DecodedCharacter character = DecodeUtf8(at, end);
      at += character.length;
      char32_t code = character.code == kInvalid ? kReplacement : character.code;
      std::uint8_t bits = classes_[code];
      if (options_.clean_text && (bits & kBertRemoved)) continue;
      if (options_.clean_text && (bits & kBertSpace)) code = ' ';
      bool alone = options_.handle_chinese_chars && (bits & kBertChinese);
      if (alone) boundary();
      ForEachReplacement(code, [&](char32_t put) {
        std::uint8_t kind = classes_[put];
        if (kind & (kBertBlank | kBertPunctuation)) {
          boundary();
          if (kind & kBertPunctuation) AppendUtf8(put, word);
          boundary();
        } else if (kind & kBertStripped && options_.strip_accents) {
          if (kind & kBertBarrier) marks.clear();
        } else if (kind & kBertMark && options_.strip_accents) {
          AppendMark(put, marks, word);
        } else {
          AppendUtf8(put, word);
          marks.clear();
        }
      });
      if (alone) boundary();
    }
    boundary();
  }

 private:
  /// The marks at the end of a word, sorted by combining class: class and code point.
  using Marks = std::vector<std::pair<std::uint32_t, char32_t>>;

  /// Visits the characters that replace `code`, as the options want accents and case.
  template <class Visit>
  void ForEachReplacement(char32_t code, Visit visit) const {
    // Hangul syllables decompose by arithmetic (Unicode, section 3.12): 588 a leading consonant, 28 a vowel.
    constexpr char32_t kHangul = 0xAC00, kHangulEnd = 0xD7A4;
    if (options_.strip_accents && code >= kHangul && code < kHangulEnd) {
      char32_t index = code - kHangul, tail = index % 28;
      visit(0x1100 + index / 588);
      visit(0x1161 + index % 588 / 28);
      if (tail != 0) visit(0x11A7 + tail);
      return;
    }
    std::uint32_t at = replacements_[code];
    if (at == 0) return visit(code);
    for (std::uint32_t i = 1; i <= replacement_text_[at]; ++i) visit(replacement_text_[at + i]);
  }
  void AppendMark(char32_t code, Marks& marks, std::string& word) const;

  BertOptions options_;
  char plain_[128];  ///< the replacement of an ASCII character without classes; 0: the character has classes
  CodePointMap<std::uint8_t> classes_;
  CodePointMap<std::uint32_t> replacements_;   ///< index of the replacement in replacement_text_; 0: none
  std::vector<char32_t> replacement_text_{0};  ///< each replacement: its length, then its code points
};

}  // namespace millrace::tokenizer
