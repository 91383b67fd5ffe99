// The strings of a vocabulary, in one block of memory.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/tokenizer/tokenizer.h"

namespace millrace::tokenizer {

/// Strings by id. Ids are dense from 0. An unused id has an empty string. Immutable once filled; then any thread.
class TokenStrings {
 public:
  /// Readable padding after the last string, in bytes. Lets Copy() move short strings with one memcpy of fixed size.
  static constexpr std::size_t kSlack = 16;

  void Reserve(std::size_t count, std::size_t bytes) {
    offsets_.reserve(count + 1);
    text_.reserve(bytes + kSlack);
  }
  void Add(std::string_view token) {
    text_.resize(offsets_.back());
    text_ += token;
    offsets_.push_back(static_cast<std::uint32_t>(text_.size()));
    text_.append(kSlack, '\0');
  }
  int size() const { return static_cast<int>(offsets_.size()) - 1; }
  std::string_view operator[](TokenId id) const {
    auto at = static_cast<std::size_t>(id);
    return {text_.data() + offsets_[at], offsets_[at + 1] - offsets_[at]};
  }
  /// Copies the string to `to` and returns the end of the copy. REQUIRES: room for the string and kSlack more bytes.
  char* Copy(TokenId id, char* to) const {
    std::string_view token = (*this)[id];
    std::memcpy(to, token.data(), kSlack);
    if (token.size() > kSlack) [[unlikely]]
      std::memcpy(to + kSlack, token.data() + kSlack, token.size() - kSlack);
    return to + token.size();
  }

 private:
  std::string text_ = std::string(kSlack, '\0');
  std::vector<std::uint32_t> offsets_ = {0};
};

}  // namespace millrace::tokenizer
