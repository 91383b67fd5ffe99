// An index from a token's string to its id.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "millrace/tokenizer/vocabulary/token_strings.h"

namespace millrace::tokenizer {

/// Maps strings to ids. Borrows the TokenStrings, which must outlive the index and not move. A hash table with open
/// addressing, at most half full. Immutable once filled; then any thread.
class TokenIndex {
 public:
  TokenIndex() = default;
  TokenIndex(const TokenStrings& strings, std::size_t expected);

  /// Adds the string of `id`. Returns false, and adds nothing, if the index has this string under another id.
  bool Insert(TokenId id);
  /// Returns kNoToken if the index does not have the string.
  TokenId Find(std::string_view token) const;

 private:
  struct Slot {
    std::uint32_t tag = 0;
    TokenId id = kNoToken;
  };
  const TokenStrings* strings_ = nullptr;
  std::size_t mask_ = 0;
  std::vector<Slot> slots_;
};

}  // namespace millrace::tokenizer
