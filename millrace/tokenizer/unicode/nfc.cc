#include "millrace/tokenizer/unicode/nfc.h"

#include <algorithm>
#include <utility>

#include "millrace/tokenizer/unicode/utf8.h"

namespace millrace::tokenizer {
namespace {

// Hangul syllables consist of a leading consonant, a vowel, and perhaps a trailing consonant. kTrailing means none.
constexpr char32_t kSyllable = 0xAC00, kLeading = 0x1100, kVowel = 0x1161, kTrailing = 0x11A7;
constexpr char32_t kLeadings = 19, kVowels = 21, kTrailings = 28;
constexpr char32_t kSyllables = kLeadings * kVowels * kTrailings;

/// The lead byte of U+0300. Text whose bytes are all smaller is in NFC already.
constexpr std::uint8_t kFirstLead = 0xCC;

}  // namespace

Nfc::Nfc() : traits_({}), pairs_(kNfcPairsCount / 3) {
  for (std::size_t i = 0; i < kNfcOrdersCount; ++i) {
    Traits& traits = traits_.At(kNfcOrders[i] >> 8);
    traits.order = static_cast<std::uint8_t>(kNfcOrders[i] & 0xFF);
    traits.joins = true;
  }
  std::vector<char32_t> composed;
  for (std::size_t i = 0; i < kNfcPairsCount; i += 3) {
    auto left = static_cast<Symbol>(kNfcPairs[i]), right = static_cast<Symbol>(kNfcPairs[i + 1]);
    pairs_.Add(left, right, {static_cast<Symbol>(kNfcPairs[i + 2]), 0});
    traits_.At(kNfcPairs[i + 1]).joins = true;
    composed.push_back(kNfcPairs[i + 2]);
  }
  std::ranges::sort(composed);
  for (std::size_t i = 0; i < kNfcDecomposedCount;) {
    char32_t code = kNfcDecomposed[i] >> 3, length = kNfcDecomposed[i] & 7;
    Traits& traits = traits_.At(code);
    traits.decomposed = static_cast<std::uint16_t>(decomposed_.size());
    traits.joins |= !std::ranges::binary_search(composed, code);  // composing never yields this character
    decomposed_.push_back(length);
    decomposed_.insert(decomposed_.end(), &kNfcDecomposed[i + 1], &kNfcDecomposed[i + 1 + length]);
    i += 1 + length;
  }
  for (char32_t i = 0; i < kVowels; ++i) traits_.At(kVowel + i).joins = true;
  for (char32_t i = 1; i < kTrailings; ++i) traits_.At(kTrailing + i).joins = true;
}

std::string_view Nfc::Normalize(std::string_view text, std::string& buffer) const {
  const char *done = text.data(), *end = done + text.size(), *begin = nullptr;
  std::vector<CombiningMark> marks;
  for (const char* at = done; (at = FindStretch(text, at, begin)) != begin;) {
    if (done == text.data()) buffer.clear();
    buffer.append(done, begin);
    ComposeStretch({begin, at}, marks, buffer);
    done = at;
  }
  if (done == text.data()) return text;
  buffer.append(done, end);
  return buffer;
}

const char* Nfc::FindStretch(std::string_view text, const char* at, const char*& begin) const {
  const char* end = text.data() + text.size();
  while (true) {
    while (at != end && static_cast<std::uint8_t>(*at) < kFirstLead) ++at;
    if (at == end) return begin = end;
    DecodedCharacter character = DecodeUtf8(at, end);
    if (character.code != kInvalid && traits_[character.code].joins) break;
    at += character.length;
  }
  begin = at;
  for (std::uint32_t length = 1; length <= 4 && at - text.data() >= length; ++length) {  // the character in front
    DecodedCharacter previous = DecodeUtf8(at - length, at);
    if (previous.code != kInvalid && previous.length == length) begin = at - length;
  }
  while (at != end) {
    DecodedCharacter character = DecodeUtf8(at, end);
    if (character.code == kInvalid || !traits_[character.code].joins) break;
    at += character.length;
  }
  return at;
}

void Nfc::DecomposeCharacter(char32_t code, std::vector<CombiningMark>& marks) const {
  auto add = [&](char32_t part) {
    marks.push_back({traits_[part].order, static_cast<std::uint32_t>(marks.size()), part});
  };
  if (code - kSyllable < kSyllables) {
    char32_t index = code - kSyllable, trailing = index % kTrailings;
    add(kLeading + index / kTrailings / kVowels);
    add(kVowel + index / kTrailings % kVowels);
    if (trailing != 0) add(kTrailing + trailing);
    return;
  }
  std::size_t at = traits_[code].decomposed;
  if (at == 0) return add(code);
  for (std::size_t i = 1; i <= decomposed_[at]; ++i) add(decomposed_[at + i]);
}

char32_t Nfc::Compose(char32_t left, char32_t right) const {
  if (left - kLeading < kLeadings && right - kVowel < kVowels) {
    return kSyllable + ((left - kLeading) * kVowels + right - kVowel) * kTrailings;
  }
  if (left - kSyllable < kSyllables && (left - kSyllable) % kTrailings == 0 && right > kTrailing &&
      right < kTrailing + kTrailings) {
    return left + (right - kTrailing);
  }
  MergeTable::Merge found = pairs_.Find(static_cast<Symbol>(left), static_cast<Symbol>(right));
  return found.rank == kNoRank ? 0 : static_cast<char32_t>(found.merged);
}

/// Sorts each run of marks by combining class.
void Nfc::Sort(std::vector<CombiningMark>& marks) {
  for (auto run = marks.begin(); run != marks.end();) {
    auto end = std::find_if(run + 1, marks.end(), [](const CombiningMark& mark) { return mark.order == 0; });
    auto first = run->order == 0 ? run + 1 : run;
    std::ranges::sort(first, end, {}, [](const CombiningMark& mark) { return std::pair(mark.order, mark.place); });
    run = end;
  }
}

void Nfc::Decompose(std::string_view text, std::string& to) const {
  std::vector<CombiningMark> marks;
  auto flush = [&] {
    Sort(marks);
    for (const CombiningMark& mark : marks) AppendUtf8(mark.code, to);
    marks.clear();
  };
  for (const char *at = text.data(), *end = at + text.size(); at != end;) {
    const DecodedCharacter character = DecodeUtf8(at, end);
    if (character.code < 0x80 || character.code == kInvalid) {
      flush();
      to += *at;
    } else {
      const std::size_t apart = traits_[character.code].decomposed;
      if (traits_[apart != 0 ? decomposed_[apart + 1] : character.code].order == 0) flush();
      DecomposeCharacter(character.code, marks);
    }
    at += character.length;
  }
  flush();
}

void Nfc::ComposeStretch(std::string_view stretch, std::vector<CombiningMark>& marks, std::string& to) const {
  marks.clear();
  for (const char *at = stretch.data(), *end = at + stretch.size(); at != end;) {
    DecodedCharacter character = DecodeUtf8(at, end);
    DecomposeCharacter(character.code, marks);
    at += character.length;
  }
  Sort(marks);
  // A mark composes with the last starter, unless a mark of the same or a higher class is between them.
  std::size_t kept = 0, base = SIZE_MAX;
  for (const CombiningMark& mark : marks) {
    bool next_to = base + 1 == kept;
    if (base != SIZE_MAX && (next_to || marks[kept - 1].order < mark.order)) {
      if (char32_t both = Compose(marks[base].code, mark.code)) {
        marks[base].code = both;
        continue;
      }
    }
    if (mark.order == 0) base = kept;
    marks[kept++] = mark;
  }
  for (std::size_t i = 0; i < kept; ++i) AppendUtf8(marks[i].code, to);
}

Nfkc::Nfkc() {
  for (std::size_t i = 0; i < kCompatibleCount;) {
    const std::uint32_t length = kCompatible[i] & 31;
    std::string text;
    for (std::uint32_t part = 1; part <= length; ++part) AppendUtf8(kCompatible[i + part], text);
    compatible_.Set(kCompatible[i] >> 5, std::move(text));
    i += 1 + length;
  }
}

std::string_view Nfkc::Normalize(std::string_view text, std::string& buffer) const {
  std::string apart;
  if (!compatible_.Replace(text, apart)) return nfc_.Normalize(text, buffer);
  const std::string_view composed = nfc_.Normalize(apart, buffer);
  if (composed.data() == apart.data()) buffer = std::move(apart);
  return buffer;
}

void Nfkc::Decompose(std::string_view text, std::string& to) const {
  std::string apart;
  nfc_.Decompose(compatible_.Replace(text, apart) ? apart : text, to);
}

}  // namespace millrace::tokenizer
