// Characters that stand for other text.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "millrace/tokenizer/tables/code_point_map.h"
#include "millrace/tokenizer/unicode/utf8.h"

namespace millrace::tokenizer {

/// At most 65,535 of them. Any thread, once all are set.
class CharacterTexts {
 public:
  CharacterTexts() : at_(0) {}

  void Set(char32_t code, std::string text) {
    at_.At(code) = static_cast<std::uint16_t>(texts_.size());
    texts_.push_back(std::move(text));
  }

  /// Appends `text` with each of them replaced to `to`; false, and nothing done, if there are none in it. Bytes that
  /// are no part of valid UTF-8 stay.
  bool Replace(std::string_view text, std::string& to) const {
    const char *done = text.data(), *end = done + text.size();
    for (const char* at = done; at != end;) {
      const Decoded character = DecodeUtf8(at, end);
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
  CodePointMap<std::uint16_t> at_;  ///< in texts_; 0: stands for itself
  std::vector<std::string> texts_{""};
};

}  // namespace millrace::tokenizer
