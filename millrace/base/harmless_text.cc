#include "millrace/base/harmless_text.h"

namespace millrace {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

}  // namespace

bool IsDeceptive(char32_t c) {
  return (c >= 0x80 && c <= 0x9F) || c == 0x2028 || c == 0x2029 || (c >= 0x202A && c <= 0x202E) ||
         (c >= 0x2066 && c <= 0x2069);
}

char32_t CharacterAt(std::string_view text, std::size_t at, std::size_t& length) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[at + i]); };
  const unsigned char first = byte(0);
  length = 1;
  if (first < 0x80) return first;
  const std::size_t size = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  constexpr char32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};  // by size; shorter forms are no UTF-8
  if (first < 0xC2 || first > 0xF4 || text.size() - at < size) return 0xFFFD;
  char32_t c = first & (0x7F >> size);
  for (std::size_t i = 1; i < size; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0xFFFD;
    c = c << 6 | (byte(i) & 0x3F);
  }
  if (c < kLeast[size] || c > 0x10FFFF || (c >= 0xD800 && c <= 0xDFFF)) return 0xFFFD;
  length = size;
  return c;
}

std::string HarmlessText(std::string_view text) {
  std::string harmless;
  harmless.reserve(text.size());
  for (std::size_t at = 0, length = 0; at < text.size(); at += length) {
    const char32_t c = CharacterAt(text, at, length);
    if (c == '\r' && at + 1 < text.size() && text[at + 1] == '\n') continue;
    if (c == '\n' || c == '\t') {
      harmless += static_cast<char>(c);
    } else if (c < 0x20 || c == 0x7F) {
      // U+2400 + c, and U+2421 for DEL.
      harmless += {'\xE2', '\x90', static_cast<char>(c == 0x7F ? 0xA1 : 0x80 + c)};
    } else if (IsDeceptive(c) || c == 0xFFFD) {
      harmless += kReplacement;
    } else {
      harmless += text.substr(at, length);
    }
  }
  return harmless;
}

}  // namespace millrace
