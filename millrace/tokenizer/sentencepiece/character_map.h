// SentencePiece's compiled rules that replace characters ("precompiled_charsmap").
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/bytes.h"
#include "millrace/base/result.h"

namespace millrace::tokenizer {

/// Maps strings to their replacements. Immutable; any thread.
class CharacterMap {
 public:
  CharacterMap() = default;
  /// Reads a map from bytes, which need not outlive the call. Errors: kInvalidArgument if the bytes are not a map.
  static Result<CharacterMap> Parse(ByteSpan bytes);

  bool empty() const { return units_.empty(); }
  /// Finds the longest string of the map that `text` begins with. Returns its length, or 0 if there is none.
  std::size_t Longest(std::string_view text, std::string_view& replacement) const {
    return Find(text, false, replacement);
  }
  /// As Longest(), for the shortest string.
  std::size_t Shortest(std::string_view text, std::string_view& replacement) const {
    return Find(text, true, replacement);
  }

 private:
  std::size_t Find(std::string_view text, bool first, std::string_view& replacement) const;

  std::vector<std::uint32_t> units_;  ///< a double-array trie (darts-clone's layout)
  std::string replacements_;          ///< NUL-terminated strings; the trie's values are offsets
};

}  // namespace millrace::tokenizer
