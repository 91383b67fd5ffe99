// SentencePiece's compiled rules of what stands for what ("precompiled_charsmap").
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/bytes.h"
#include "millrace/base/result.h"

namespace millrace::tokenizer {

/// Strings and what replaces them. Immutable.
class CharacterMap {
 public:
  CharacterMap() = default;
  /// Fails with kInvalidArgument on bytes that are no such map. They need not live on.
  static Result<CharacterMap> Parse(ByteSpan bytes);

  bool empty() const { return units_.empty(); }
  /// How long the longest string is that `text` begins with, and what replaces it; 0: none does.
  std::size_t Longest(std::string_view text, std::string_view& replacement) const {
    return Find(text, false, replacement);
  }
  /// … the shortest.
  std::size_t Shortest(std::string_view text, std::string_view& replacement) const {
    return Find(text, true, replacement);
  }

 private:
  std::size_t Find(std::string_view text, bool first, std::string_view& replacement) const;

  std::vector<std::uint32_t> units_;  ///< a double-array trie (darts-clone's layout)
  std::string replacements_;          ///< NUL-terminated strings; the trie's values are offsets
};

}  // namespace millrace::tokenizer
