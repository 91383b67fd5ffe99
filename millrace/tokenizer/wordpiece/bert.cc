#include "millrace/tokenizer/wordpiece/bert.h"

#include <algorithm>
#include <map>

namespace millrace::tokenizer {
namespace {

// The ranges of BertNormalizer's is_chinese_char.
constexpr std::pair<char32_t, char32_t> kChinese[] = {{0x4E00, 0x9FFF},   {0x3400, 0x4DBF},   {0x20000, 0x2A6DF},
                                                      {0x2A700, 0x2B73F}, {0x2B740, 0x2B81F}, {0x2B920, 0x2CEAF},
                                                      {0xF900, 0xFAFF},   {0x2F800, 0x2FA1F}};

using Mapping = std::map<char32_t, std::vector<char32_t>>;

Mapping ReadMapping(const std::uint32_t* table, std::size_t count) {
  Mapping mapping;
  for (std::size_t at = 0; at < count;) {
    std::uint32_t head = table[at++], length = head & 7;
    mapping[head >> 3] = std::vector<char32_t>(table + at, table + at + length);
    at += length;
  }
  return mapping;
}

}  // namespace

CodePointMap<std::uint8_t> MakeBertClasses() {
  CodePointMap<std::uint8_t> classes(0);
  for (std::size_t i = 0; i < kBertClassesCount; ++i) {
    char32_t end = i + 1 < kBertClassesCount ? kBertClasses[i + 1] >> 5 : 0x110000;
    auto bits = static_cast<std::uint8_t>(kBertClasses[i] & 31);
    if (bits != 0) classes.Fill(kBertClasses[i] >> 5, end, bits);
  }
  // Fill() shares memory only among whole blocks of one class: private use and unassigned characters. None of them is
  // Chinese, blank or a mark, so the changes below leave the shared blocks alone.
  for (auto [first, last] : kChinese) {
    for (char32_t code = first; code <= last; ++code) classes.At(code) |= kBertChinese;
  }
  for (char32_t code = 0; code <= 0x3000; ++code) {
    if (IsWhiteSpace(code)) classes.At(code) |= kBertBlank;
  }
  for (std::size_t i = 0; i < kBertOrdersCount; ++i) classes.At(kBertOrders[i] >> 8) |= kBertMark;
  return classes;
}

BertWords::BertWords(const BertOptions& options)
    : options_(options), plain_{}, classes_(MakeBertClasses()), replacements_(0) {
  Mapping stripped, lowered;
  if (options.strip_accents) stripped = ReadMapping(kBertStrippedMap, kBertStrippedMapCount);
  if (options.lowercase) lowered = ReadMapping(kBertLowered, kBertLoweredCount);
  auto lower = [&](char32_t code) {
    auto found = lowered.find(code);
    return found == lowered.end() ? std::vector<char32_t>{code} : found->second;
  };
  auto set = [&](char32_t code, const std::vector<char32_t>& text) {
    replacements_.At(code) = static_cast<std::uint32_t>(replacement_text_.size());
    replacement_text_.push_back(static_cast<char32_t>(text.size()));
    replacement_text_.insert(replacement_text_.end(), text.begin(), text.end());
  };
  for (auto& [code, text] : lowered) set(code, text);
  for (auto& [code, text] : stripped) {
    std::vector<char32_t> both;
    for (char32_t part : text) {
      for (char32_t final : lower(part)) both.push_back(final);
    }
    set(code, both);
  }
  for (char32_t code = 0; code < 128; ++code) {
    if (classes_[code] == 0) plain_[code] = static_cast<char>(lower(code)[0]);
  }
}

void BertWords::AppendMark(char32_t code, Marks& marks, std::string& word) const {
  const auto* found = std::ranges::lower_bound(kBertOrders, kBertOrders + kBertOrdersCount, code << 8);
  std::uint32_t order = *found & 0xFF;
  std::size_t length = 0;
  for (auto& [unused, mark] : marks) {
    char bytes[4];
    length += static_cast<std::size_t>(EncodeUtf8(mark, bytes));
  }
  word.resize(word.size() - length);
  auto place = std::ranges::upper_bound(marks, order, {}, &Marks::value_type::first);
  marks.insert(place, {order, code});
  for (auto& [unused, mark] : marks) AppendUtf8(mark, word);
}

}  // namespace millrace::tokenizer
