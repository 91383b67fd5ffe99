// Replaces characters by other text.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "millrace/tokenizer/tables/code_point_map.h"
#include "millrace/tokenizer/unicode/utf8.h"

namespace millrace::tokenizer {

/// Holds at most 65,535 characters and their replacements. Immutable once filled; then any thread.
class CharacterReplacements {
 public:
  CharacterReplacements() : at_(0) {}

  void Set(char32_t code, std::string text) {
    at_.At(code) = static_cast<std::uint16_t>(texts_.size());
    texts_.push_back(std::move(text));
  }

  /// Appends `text` to `to`, with all characters replaced. Leaves invalid bytes as they are. Returns false, and appends
  /// nothing, if no character of `text` has a replacement.
  bool Replace(std::string_view text, std::string& to) const {
    const char *done = text.data(), *end = done + text.size();
    for (const char* at = done; at != end;) {
      const DecodedCharacter character = DecodeUtf8(at, end);
      const std::uint16_t other = character.code == kInvalid ? std::uint16_t{0} : at_[character.code];
      if (other != 0) {
        to.append(done, at) += texts_[other];
        done = at + character.length;
      }
      at += character.length;
    }
    if (done == text.data()) return false;
    to.append(done, end);
    return true;
  }

 private:
  CodePointMap<std::uint16_t> at_;  ///< an index into texts_; 0: the character has no replacement
  std::vector<std::string> texts_{""};
};

}  // namespace millrace::tokenizer
