// The bytes that each token of a vocabulary adds to a text.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "millrace/tokenizer/tokenizer.h"

namespace millrace::serve {

using tokenizer::TokenId;

/// The tokens that add bytes, in the order of their bytes. Special tokens add none. Immutable.
class TokenBytes {
 public:
  struct Entry {
    std::string bytes;
    TokenId token = 0;
    std::uint32_t shared = 0;  ///< bytes at the beginning that the entry before has too
  };
  explicit TokenBytes(const tokenizer::Tokenizer& tokenizer);
  const std::vector<Entry>& entries() const { return entries_; }
  int vocab_size() const { return vocab_size_; }
  /// Returns the bytes of a token; empty for one that adds none.
  const std::string& BytesOf(TokenId token) const;

 private:
  int vocab_size_;
  std::vector<Entry> entries_;
  std::vector<std::int32_t> places_;  ///< by token; -1: none
};

}  // namespace millrace::serve
