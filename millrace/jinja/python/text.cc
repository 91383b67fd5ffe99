#include "millrace/jinja/python/text.h"

#include <algorithm>
#include <cstring>

#include "millrace/jinja/python/work.h"

namespace millrace::jinja {
namespace {

/// Looking at a character takes as long as copying this many bytes.
constexpr std::size_t kCharacterCost = 8;

/// Whether str.isspace() is true for the character.
bool IsSpace(char32_t code) {
  return (code >= 0x09 && code <= 0x0D) || (code >= 0x1C && code <= 0x20) || code == 0x85 || code == 0xA0 ||
         code == 0x1680 || (code >= 0x2000 && code <= 0x200A) || code == 0x2028 || code == 0x2029 || code == 0x202F ||
         code == 0x205F || code == 0x3000;
}

bool IsLetter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
char UpperOf(char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c; }
char LowerOf(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

/// Python's rules for other letters are Unicode's, which change lengths; templates use names of roles and types.
Status CheckLetters(std::string_view text) {
  if (!Work::HasRoom(text.size())) return Work::Check();
  if (IsAscii(text)) return Work::Check();
  if (!Work::Read(text.size() * kCharacterCost)) return Work::Check();
  for (std::size_t at = 0; at < text.size();) {
    const auto [code, length] = CharacterAt(text, at);
    at += length;
    // Beyond the punctuation of Latin-1, most scripts without capitals are letters too: only ASCII is certain.
    if (code >= 0xAA && code < tokenizer::kInvalid) {
      return Fail(Code::kUnsupported, "capital and small letters beyond ASCII are not supported");
    }
  }
  return {};
}

/// Returns where the character before byte `end` begins.
std::size_t CharacterBefore(std::string_view text, std::size_t end) {
  for (std::size_t back = 1; back <= std::min<std::size_t>(4, end); ++back) {
    if (CharacterAt(text.substr(0, end), end - back).length == back) return end - back;
  }
  return end - 1;
}

}  // namespace

bool IsAscii(std::string_view text) {
  if (!Work::Read(text.size())) return false;
  // Without an early end, the loop becomes vector instructions.
  unsigned char all = 0;
  for (const char c : text) all |= static_cast<unsigned char>(c);
  return all < 0x80;
}

std::int64_t CountCharacters(std::string_view text) {
  if (IsAscii(text)) return static_cast<std::int64_t>(text.size());
  if (!Work::Read(text.size() * kCharacterCost)) return 0;
  std::int64_t count = 0;
  for (std::size_t at = 0; at < text.size(); at += CharacterAt(text, at).length) ++count;
  return count;
}

std::vector<std::size_t> CharacterStarts(std::string_view text) {
  std::vector<std::size_t> starts;
  if (!Work::Read(text.size() * kCharacterCost)) return {0};
  for (std::size_t at = 0; at < text.size(); at += CharacterAt(text, at).length) starts.push_back(at);
  starts.push_back(text.size());
  return starts;
}

std::size_t FindFirst(std::string_view text, std::string_view wanted) {
  if (wanted.empty() || !Work::Read(0)) return wanted.empty() ? 0 : std::string_view::npos;
  // memmem() is linear; find() compares each place anew.
  const void* at = memmem(text.data(), text.size(), wanted.data(), wanted.size());
  if (at == nullptr) {
    Work::Read(text.size());
    return std::string_view::npos;
  }
  const auto found = static_cast<std::size_t>(static_cast<const char*>(at) - text.data());
  Work::Read(found + wanted.size());
  return found;
}

std::size_t FindLast(std::string_view text, std::string_view wanted) {
  if (wanted.size() > text.size()) return std::string_view::npos;
  for (std::size_t at = text.size() - wanted.size() + 1; at-- > 0;) {
    const auto differ = std::mismatch(wanted.begin(), wanted.end(), text.begin() + static_cast<std::ptrdiff_t>(at));
    if (differ.first == wanted.end()) return at;
    if (!Work::Read(1 + static_cast<std::size_t>(differ.first - wanted.begin()))) break;
  }
  return std::string_view::npos;
}

std::string_view Strip(std::string_view text, Ends ends, std::optional<std::string_view> characters) {
  const auto taken = [&](std::size_t at, std::size_t length) {
    if (!Work::Read(kCharacterCost + (characters ? characters->size() : 0))) return false;
    return characters ? characters->find(text.substr(at, length)) != std::string_view::npos
                      : IsSpace(CharacterAt(text, at).code);
  };
  std::size_t begin = 0, end = text.size();
  while (ends != Ends::kRight && begin < end) {
    const std::size_t length = CharacterAt(text, begin).length;
    if (!taken(begin, length)) break;
    begin += length;
  }
  while (ends != Ends::kLeft && begin < end) {
    const std::size_t last = CharacterBefore(text, end);
    if (!taken(last, end - last)) break;
    end = last;
  }
  return text.substr(begin, end - begin);
}

Result<std::string> Upper(std::string_view text) {
  MR_TRY(CheckLetters(text));
  std::string upper(text);
  std::transform(upper.begin(), upper.end(), upper.begin(), UpperOf);
  return upper;
}

Result<std::string> Lower(std::string_view text) {
  MR_TRY(CheckLetters(text));
  std::string lower(text);
  std::transform(lower.begin(), lower.end(), lower.begin(), LowerOf);
  return lower;
}

Result<std::string> Capitalize(std::string_view text) {
  std::string lower = MR_TRY(Lower(text));
  if (!lower.empty()) lower[0] = UpperOf(lower[0]);
  return lower;
}

Result<std::string> Title(std::string_view text, std::string_view breaks) {
  std::string title = MR_TRY(Lower(text));
  bool begins = true;
  for (char& c : title) {
    if (begins) c = UpperOf(c);
    begins = breaks.empty() ? !IsLetter(c) : breaks.find(c) != std::string_view::npos;
  }
  return title;
}

std::string Replace(std::string_view text, std::string_view from, std::string_view to, std::int64_t most) {
  std::string replaced;
  std::size_t at = 0;
  for (std::int64_t count = 0; most < 0 || count < most; ++count) {
    if (!Work::HasRoom(replaced.size() + to.size() + (text.size() - at))) return replaced;
    if (from.empty()) {
      // In front of each character, and at the end.
      replaced += to;
      if (at == text.size()) return replaced;
      const std::size_t length = CharacterAt(text, at).length;
      replaced += text.substr(at, length);
      at += length;
      continue;
    }
    const std::size_t found = FindFirst(text.substr(at), from);
    if (found == std::string_view::npos) break;
    replaced += text.substr(at, found);
    replaced += to;
    at += found + from.size();
  }
  replaced += text.substr(at);
  return replaced;
}

std::vector<std::string> SplitWords(std::string_view text, std::int64_t most, bool from_right) {
  std::vector<std::string> words;
  // White space at the other end belongs to the part that is not split any more.
  std::string_view left = Strip(text, from_right ? Ends::kRight : Ends::kLeft);
  while (!left.empty()) {
    std::size_t begin = 0, end = left.size();  // of the next white space
    bool found = false;
    if (most < 0 || static_cast<std::int64_t>(words.size()) < most) {
      if (from_right) {
        for (std::size_t at = left.size(); at > 0 && !found;) {
          const std::size_t before = CharacterBefore(left, at);
          if (IsSpace(CharacterAt(left, before).code)) {
            begin = before;
            end = at;
            found = true;
          }
          at = before;
        }
      } else {
        for (std::size_t at = 0; at < left.size() && !found;) {
          const auto [code, length] = CharacterAt(left, at);
          if (IsSpace(code)) {
            begin = at;
            end = at + length;
            found = true;
          }
          at += length;
        }
      }
    }
    if (!found) {
      words.emplace_back(left);
      break;
    }
    words.emplace_back(from_right ? left.substr(end) : left.substr(0, begin));
    if (!Work::Read(words.back().size()) || !Work::HasRoom(text.size() + words.size() * sizeof(std::string))) break;
    left = from_right ? Strip(left.substr(0, begin), Ends::kRight) : Strip(left.substr(end), Ends::kLeft);
  }
  if (from_right) std::reverse(words.begin(), words.end());
  return words;
}

std::vector<std::string> SplitAt(std::string_view text, std::string_view separator, std::int64_t most,
                                 bool from_right) {
  std::vector<std::string> parts;
  while (most < 0 || static_cast<std::int64_t>(parts.size()) < most) {
    const std::size_t found = from_right ? FindLast(text, separator) : FindFirst(text, separator);
    if (found == std::string_view::npos || !Work::HasRoom(text.size() + parts.size() * sizeof(std::string))) break;
    const std::string_view behind = text.substr(found + separator.size());
    parts.emplace_back(from_right ? behind : text.substr(0, found));
    text = from_right ? text.substr(0, found) : behind;
  }
  parts.emplace_back(text);
  if (from_right) std::reverse(parts.begin(), parts.end());
  return parts;
}

std::vector<std::string> SplitLines(std::string_view text, bool keep_ends) {
  const auto breaks = [](char32_t code) {
    return (code >= 0x0A && code <= 0x0D) || (code >= 0x1C && code <= 0x1E) || code == 0x85 || code == 0x2028 ||
           code == 0x2029;
  };
  std::vector<std::string> lines;
  if (!Work::Read(text.size() * kCharacterCost)) return lines;
  for (std::size_t begin = 0, at = 0; begin < text.size();) {
    while (at < text.size() && !breaks(CharacterAt(text, at).code)) at += CharacterAt(text, at).length;
    std::size_t end = at;
    if (at < text.size()) end += CharacterAt(text, at).length;
    if (end < text.size() && text[at] == '\r' && text[end] == '\n') ++end;
    lines.emplace_back(text.substr(begin, (keep_ends ? end : at) - begin));
    begin = at = end;
    if (!Work::HasRoom(text.size() + lines.size() * sizeof(std::string))) break;
  }
  return lines;
}

}  // namespace millrace::jinja
