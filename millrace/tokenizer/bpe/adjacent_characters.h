// Finds places where a text may be cut: its parts, merged one by one, then have exactly the tokens of the whole text.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "millrace/tokenizer/tables/code_point_map.h"
#include "millrace/tokenizer/unicode/utf8.h"

namespace millrace::tokenizer {

/// Records which two characters stand side by side inside some token. Two characters that never do cannot get into one
/// token, however the text around them merges, so the text may be cut between them. May say that two characters join
/// although they do not, never the other way round. Immutable once filled; then any thread.
class AdjacentCharacters {
 public:
  AdjacentCharacters() : sides_(0), pairs_(kFilterBits / 64) {}

  /// Records every two neighbouring characters of `token`. Tokens of byte-level vocabularies may begin or end within a
  /// character.
  void AddToken(std::string_view token);

  /// Returns whether `left` and `right` may be neighbours in one token. Both are code points or kInvalid.
  bool MayJoin(char32_t left, char32_t right) const {
    if ((left | right) < 0x80) return ascii_[left << 7 | right];
    return MayJoinWide(left, right);
  }

 private:
  // The character is before (after) another character in some token.
  static constexpr std::uint8_t kBefore = 1, kAfter = 2;
  // It is before (after) an incomplete character in some token, which may be any character.
  static constexpr std::uint8_t kBeforeAny = 4, kAfterAny = 8;
  static constexpr std::size_t kFilterBits = 1u << 19;  // 64 KiB; a wrong "may join" costs time, not correctness

  bool MayJoinWide(char32_t left, char32_t right) const {
    if (left == kInvalid || right == kInvalid) return true;
    std::uint8_t before = Sides(left), after = Sides(right);
    if (!(before & kBefore) || !(after & kAfter)) return false;
    if ((before & kBeforeAny) || (after & kAfterAny)) return true;
    std::uint32_t bit = FilterBit(left, right);
    return pairs_[bit / 64] >> (bit % 64) & 1;
  }
  std::uint8_t Sides(char32_t code) const {
    return code >= 0x10000 && parts_ ? kBefore | kAfter | kBeforeAny | kAfterAny : sides_[code];
  }
  static std::uint32_t FilterBit(char32_t left, char32_t right) {
    std::uint64_t key = static_cast<std::uint64_t>(left) << 21 | right;
    return static_cast<std::uint32_t>(key * 0x9E3779B97F4A7C15u >> 45);
  }
  void AddPair(char32_t left, char32_t right);
  void AddEndingsOf(std::string_view ending);
  void AddBeginningsOf(std::string_view beginning);

  std::array<bool, 128 * 128> ascii_{};
  bool parts_ = false;  ///< some token begins or ends within a character
  CodePointMap<std::uint8_t> sides_;
  std::vector<std::uint64_t> pairs_;  ///< a Bloom filter with one hash: a bit is set for every recorded pair
};

}  // namespace millrace::tokenizer
