// Decodes and encodes UTF-8, one character at a time. Valid are the shortest forms only, without surrogates, up to
// U+10FFFF, as SentencePiece reads it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace millrace::tokenizer {

inline constexpr char32_t kReplacement = 0xFFFD;
/// The value of DecodedCharacter::code for a byte that begins no valid character. Not a code point.
inline constexpr char32_t kInvalid = 0x110000;

struct DecodedCharacter {
  char32_t code = kInvalid;
  std::uint32_t length = 1;  ///< bytes; 1 for an invalid one
};

/// Returns the character at `at`. REQUIRES: `at` < `end`.
inline DecodedCharacter DecodeUtf8(const char* at, const char* end) {
  auto byte = [at](int i) { return static_cast<std::uint8_t>(at[i]); };
  auto follows = [&](int i) { return (byte(i) & 0xC0) == 0x80; };
  std::uint32_t lead = byte(0);
  std::ptrdiff_t left = end - at;
  if (lead < 0x80) return {lead, 1};
  if (lead >= 0xE0 && lead < 0xF0 && left >= 3 && follows(1) && follows(2)) [[likely]] {
    char32_t code = (lead & 0x0F) << 12 | (byte(1) & 0x3Fu) << 6 | (byte(2) & 0x3Fu);
    if (code >= 0x800 && (code < 0xD800 || code > 0xDFFF)) return {code, 3};
  } else if (lead >= 0xC2 && lead < 0xE0 && left >= 2 && follows(1)) {
    return {(lead & 0x1F) << 6 | (byte(1) & 0x3Fu), 2};
  } else if (lead >= 0xF0 && lead < 0xF5 && left >= 4 && follows(1) && follows(2) && follows(3)) {
    char32_t code = (lead & 0x07) << 18 | (byte(1) & 0x3Fu) << 12 | (byte(2) & 0x3Fu) << 6 | (byte(3) & 0x3Fu);
    if (code >= 0x10000 && code <= 0x10FFFF) return {code, 4};
  }
  return {};
}

/// Writes the character to `to` and returns its length in bytes. REQUIRES: `code` is a code point; room for 4 bytes.
inline int EncodeUtf8(char32_t code, char* to) {
  auto tail = [code](int shift) { return static_cast<char>(0x80 | ((code >> shift) & 0x3F)); };
  if (code < 0x80) {
    to[0] = static_cast<char>(code);
    return 1;
  }
  if (code < 0x800) {
    to[0] = static_cast<char>(0xC0 | code >> 6);
    to[1] = tail(0);
    return 2;
  }
  if (code < 0x10000) {
    to[0] = static_cast<char>(0xE0 | code >> 12);
    to[1] = tail(6);
    to[2] = tail(0);
    return 3;
  }
  to[0] = static_cast<char>(0xF0 | code >> 18);
  to[1] = tail(12);
  to[2] = tail(6);
  to[3] = tail(0);
  return 4;
}

/// Returns whether `bytes` are the beginning of a character that more bytes would complete.
bool MayBecomeWhole(std::string_view bytes);
/// Returns how many bytes at the end of `text` are the beginning of an incomplete character.
std::size_t UnfinishedEnd(std::string_view text);

inline void AppendUtf8(char32_t code, std::string& to) {
  char bytes[4];
  to.append(bytes, static_cast<std::size_t>(EncodeUtf8(code, bytes)));
}

}  // namespace millrace::tokenizer
