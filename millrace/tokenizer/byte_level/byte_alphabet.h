// The alphabet by which files of byte-level vocabularies write bytes: printable bytes of Latin-1 as themselves, the
// others from U+0100 on.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "millrace/tokenizer/unicode/utf8.h"

namespace millrace::tokenizer {

/// Immutable; any thread.
class ByteAlphabet {
 public:
  ByteAlphabet() {
    bytes_.fill(-1);
    char32_t next = 0x100;
    for (int byte = 0; byte < 256; ++byte) {
      const bool printable = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
      const char32_t code = printable ? static_cast<char32_t>(byte) : next++;
      bytes_[code] = byte;
      AppendUtf8(code, characters_[static_cast<std::size_t>(byte)]);
    }
  }

  /// Returns the bytes that `text` stands for, or nothing if a character stands for no byte.
  std::optional<std::string> ToBytes(std::string_view text) const {
    std::string bytes;
    for (const char *at = text.data(), *end = at + text.size(); at != end;) {
      const DecodedCharacter character = DecodeUtf8(at, end);
      if (character.code >= bytes_.size() || bytes_[character.code] < 0) return std::nullopt;
      bytes += static_cast<char>(bytes_[character.code]);
      at += character.length;
    }
    return bytes;
  }

  /// Appends the characters that stand for the bytes of `text`.
  void Append(std::string_view text, std::string& to) const {
    for (const char byte : text) to += characters_[static_cast<std::uint8_t>(byte)];
  }

 private:
  std::array<int, 0x144> bytes_{};
  std::array<std::string, 256> characters_;
};

/// All files use one alphabet.
inline const ByteAlphabet& TheByteAlphabet() {
  static const ByteAlphabet alphabet;
  return alphabet;
}

}  // namespace millrace::tokenizer
