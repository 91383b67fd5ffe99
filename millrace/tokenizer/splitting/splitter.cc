#include "millrace/tokenizer/splitting/splitter.h"

namespace millrace::tokenizer {

Splitter::Splitter(SplitPattern pattern)
    : pattern_(pattern),
      is_gpt2_(pattern == SplitPattern::kGpt2 || pattern == SplitPattern::kGpt2Digits),
      is_o200k_(pattern == SplitPattern::kO200k || pattern == SplitPattern::kTekken),
      longest_number_(pattern == SplitPattern::kQwen2 || pattern == SplitPattern::kTekken ? 1 : 3),
      classes_(MakeCharClasses()) {
  if (pattern == SplitPattern::kDeepSeek3) deepseek_.emplace();
  if (pattern == SplitPattern::kDeepSeek2) early_deepseek_.emplace(EarlyDeepSeekSplitter::Variant::kLlm);
  if (pattern == SplitPattern::kDeepSeekCoder) early_deepseek_.emplace(EarlyDeepSeekSplitter::Variant::kCoder);
  if (pattern == SplitPattern::kGpt2Digits) {  // begins with the pre-tokenizer Digits
    for (char32_t code = 0; code < 0x110000; ++code) {
      if (IsUnicode17Number(code)) classes_.At(code) = kNumber;
    }
  }
  for (char32_t code = 0; code < 128; ++code) ascii_[code] = classes_[code];
}

std::size_t Splitter::Contraction(const char* at, const char* end, bool any_case) {
  auto letter = [&](int i) {
    char byte = end - at > i ? at[i] : '\0';
    return any_case && byte >= 'A' && byte <= 'Z' ? static_cast<char>(byte - 'A' + 'a') : byte;
  };
  char first = letter(1), second = letter(2);
  if (first == 's' || first == 't' || first == 'm' || first == 'd') return 2;
  if ((first == 'r' && second == 'e') || (first == 'v' && second == 'e') || (first == 'l' && second == 'l')) return 3;
  // (?i:s) also matches U+017F, the long s.
  if (any_case && first == '\xC5' && second == '\xBF') return 3;
  return 0;
}

/// Returns the end of a word of white space. The space at `at` does not belong to a following word.
const char* Splitter::SpaceEnd(const char* at, const char* end) const {
  const char *last = at, *after = at;  // the last space of the run, and the first character behind it
  const char* behind_newline = nullptr;
  while (after != end) {
    ClassifiedCharacter look = Classify(after, end);
    if (!(look.kind & kSpace)) break;
    last = after;
    after += look.length;
    if (look.kind & kNewline) behind_newline = after;
  }
  if (after == end && (pattern_ == SplitPattern::kCl100k || is_gpt2_)) return end;
  if (behind_newline && !is_gpt2_) return behind_newline;
  if (pattern_ == SplitPattern::kGpt2Digits && (Classify(after, end).kind & kNumber))
    return after;  // Digits ends the part here
  if (after == end || last == at) return after;
  return last;  // the last one may belong to the next word
}

const char* Splitter::Gpt2WordEnd(const char* at, const char* end) const {
  if (*at == '\'') {
    if (std::size_t length = Contraction(at, end, false)) return at + length;
  }
  ClassifiedCharacter look = Classify(at, end);
  const char* begin = at;
  bool single_digits = pattern_ == SplitPattern::kGpt2Digits;
  if (*at == ' ' && end - at > 1) {
    ++begin;
    look = Classify(begin, end);
    if (single_digits && (look.kind & kNumber)) return begin;
  }
  if (look.kind & kSpace) return SpaceEnd(at, end);
  if (single_digits && (look.kind & kNumber)) return begin + look.length;
  return Skip(begin + look.length, end, look.kind & (kLetter | kNumber));
}

const char* Splitter::Llama3WordEnd(const char* at, const char* end) const {
  if (*at == '\'') {
    if (std::size_t length = Contraction(at, end, true)) return at + length;
  }
  ClassifiedCharacter look = Classify(at, end);
  const char* next = at + look.length;
  if (look.kind & kLetter) return Skip(next, end, kLetter);
  if (!(look.kind & (kNumber | kNewline)) && next != end) {
    ClassifiedCharacter following = Classify(next, end);
    if (following.kind & kLetter) return Skip(next + following.length, end, kLetter);
  }
  return WithoutLettersEnd(at, look, end);
}

/// Returns the end of a word without letters. `look` is its first character.
const char* Splitter::WithoutLettersEnd(const char* at, ClassifiedCharacter look, const char* end) const {
  const char* next = at + look.length;
  if (look.kind & kNumber) {
    for (int i = 1; i < longest_number_ && next != end; ++i) {
      ClassifiedCharacter digit = Classify(next, end);
      if (!(digit.kind & kNumber)) break;
      next += digit.length;
    }
    return next;
  }
  bool punctuation = !(look.kind & kSpace);
  if (*at == ' ' && next != end) punctuation = !(Classify(next, end).kind & (kSpace | kNumber));
  if (!punctuation) return SpaceEnd(at, end);
  const char* after = Skip(next, end, kOther);
  while (after != end && (*after == '\r' || *after == '\n' || (is_o200k_ && *after == '/'))) ++after;
  return after;
}

Splitter::CasedRun Splitter::CasedEnd(const char* at, const char* end) const {
  auto skip_all_but = [&](const char* from, std::uint8_t other, const char*& behind_caseless) {
    while (from != end) {
      ClassifiedCharacter look = Classify(from, end);
      if (!(look.kind & (kLetter | kMark)) || (look.kind & other)) break;
      from += look.length;
      if (!(look.kind & (kUpper | kLower))) behind_caseless = from;
    }
    return from;
  };
  const char *behind_caseless = nullptr, *unused = nullptr;
  const char* upper_end = skip_all_but(at, kLower, behind_caseless);
  const char* lower_end = skip_all_but(upper_end, kUpper, unused);
  if (lower_end != upper_end) return {lower_end, true};
  // L+ can match the last character that is both U and L.
  if (behind_caseless) return {behind_caseless, true};
  return {upper_end, false};
}

const char* Splitter::O200kWordEnd(const char* at, const char* end) const {
  ClassifiedCharacter look = Classify(at, end);
  if (look.kind & (kNumber | kNewline)) return WithoutLettersEnd(at, look, end);
  const char* begin = look.kind & kLetter ? at : at + look.length;  // one other character may be in front
  CasedRun run = CasedEnd(begin, end);
  if ((look.kind & kMark) && !run.lower) {
    run = CasedEnd(at, end);  // U*L+ from the mark on is the first alternative
  } else if (run.end == begin) {
    return WithoutLettersEnd(at, look, end);
  }
  bool shortened = pattern_ == SplitPattern::kO200k && run.end != end && *run.end == '\'';
  return shortened ? run.end + Contraction(run.end, end, true) : run.end;
}

}  // namespace millrace::tokenizer
