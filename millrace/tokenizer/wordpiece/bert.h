// BERT's text before it is cut into pieces: Hugging Face's BertNormalizer and BertPreTokenizer, character by character.
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

/// Bits of a character; the first five are the values of tools/bert_tables.py.
enum BertClass : std::uint8_t {
  kBertRemoved = 1,      ///< by clean_text
  kBertSpace = 2,        ///< a space after clean_text
  kBertPunctuation = 4,  ///< a word of its own
  kBertStripped = 8,     ///< an accent
  kBertBarrier = 16,     ///< … that other marks are not sorted across
  kBertChinese = 32,     ///< a word of its own for handle_chinese_chars
  kBertBlank = 64,       ///< white space: between words
  kBertMark = 128,       ///< stays when accents go, and is sorted among its like
};

extern const std::uint32_t kBertClasses[], kBertOrders[], kBertStrippedMap[], kBertLowered[];
extern const std::size_t kBertClassesCount, kBertOrdersCount, kBertStrippedMapCount, kBertLoweredCount;

/// BertClass bits by code point.
CodePointMap<std::uint8_t> MakeBertClasses();

struct BertOptions {
  bool clean_text = true;
  bool handle_chinese_chars = true;
  bool strip_accents = true;
  bool lowercase = true;
};

/// Finds words and normalizes them. Immutable; any thread. A byte that is no part of valid UTF-8 is taken for U+FFFD,
/// which clean_text removes.
class BertWords {
 public:
  explicit BertWords(const BertOptions& options);

  /// Calls visit(word) for each word of the text, in order, until it returns false. `word` is workspace.
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
  /// The marks at the end of a word, in order: combining class and code point.
  using Marks = std::vector<std::pair<std::uint32_t, char32_t>>;

  /// Visits what a character becomes without accents and in lower case.
  template <class Visit>
  void ForEachReplacement(char32_t code, Visit visit) const {
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
  char plain_[128];  ///< what ASCII letters and digits and the like become; 0: look closer
  CodePointMap<std::uint8_t> classes_;
  CodePointMap<std::uint32_t> replacements_;   ///< 0: none; else where in the text below its length stands
  std::vector<char32_t> replacement_text_{0};  ///< a length, as many code points, the next length, …
};

}  // namespace millrace::tokenizer
