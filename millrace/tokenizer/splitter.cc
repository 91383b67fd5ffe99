#include "millrace/tokenizer/splitter.h"

namespace millrace::tokenizer {

Splitter::Splitter(SplitPattern pattern) : pattern_(pattern), classes_(MakeCharClasses()) {
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
  // Without case, U+017F is an s.
  if (any_case && first == '\xC5' && second == '\xBF') return 3;
  return 0;
}

/// Of a word of white space only; `at` holds a space that does not belong to what follows.
const char* Splitter::SpaceEnd(const char* at, const char* end) const {
  const char *last = at, *after = at;  // the last space of the run, and the first character behind it
  const char* behind_newline = nullptr;
  while (after != end) {
    Look look = LookAt(after, end);
    if (!(look.kind & kSpace)) break;
    last = after;
    after += look.length;
    if (look.kind & kNewline) behind_newline = after;
  }
  if (after == end && (pattern_ == SplitPattern::kCl100k || pattern_ == SplitPattern::kGpt2)) return end;
  if (behind_newline && pattern_ != SplitPattern::kGpt2) return behind_newline;
  if (after == end || last == at) return after;
  return last;  // the last one may belong to the next word
}

const char* Splitter::Gpt2WordEnd(const char* at, const char* end) const {
  if (*at == '\'') {
    if (std::size_t length = Contraction(at, end, false)) return at + length;
  }
  Look look = LookAt(at, end);
  const char* begin = at;
  if (*at == ' ' && end - at > 1) {
    ++begin;
    look = LookAt(begin, end);
  }
  if (look.kind & kSpace) return SpaceEnd(at, end);
  return Skip(begin + look.length, end, look.kind & (kLetter | kNumber));
}

const char* Splitter::Llama3WordEnd(const char* at, const char* end) const {
  if (*at == '\'') {
    if (std::size_t length = Contraction(at, end, true)) return at + length;
  }
  Look look = LookAt(at, end);
  const char* next = at + look.length;
  if (look.kind & kLetter) return Skip(next, end, kLetter);
  if (look.kind & kNumber) {
    for (int i = 1; i < 3 && next != end; ++i) {
      Look digit = LookAt(next, end);
      if (!(digit.kind & kNumber)) break;
      next += digit.length;
    }
    return next;
  }
  Look following = next == end ? Look{kSpace, 0} : LookAt(next, end);
  if (!(look.kind & kNewline) && (following.kind & kLetter)) return Skip(next + following.length, end, kLetter);
  if (!(look.kind & kSpace) || (*at == ' ' && !(following.kind & (kSpace | kNumber)))) {
    const char* after = Skip(next, end, kOther);
    while (after != end && (*after == '\r' || *after == '\n')) ++after;
    return after;
  }
  return SpaceEnd(at, end);
}

}  // namespace millrace::tokenizer
