// A small matcher of regular expressions, for the patterns in tokenizer.json files. It follows Oniguruma: the first
// alternative that matches wins, and repetitions backtrack.
#pragma once

#include <bitset>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "millrace/base/result.h"

namespace millrace::tokenizer {

/// A compiled pattern of literals, sets and their intersections, \p{…} of categories and of Han, groups, alternatives,
/// repetitions, lookahead, look-behind of one character, and (?i:…) of ASCII characters. Immutable; any thread.
class Regex {
 public:
  /// Errors: kUnsupported, with its name, for anything else that Oniguruma knows, for patterns that may match nothing,
  /// and for repetitions of repetitions, which may take exponential time.
  static Result<Regex> Compile(std::string_view pattern);

  /// Calls visit(begin, end) for each match in `text`, from the left, until it returns false.
  /// REQUIRES: `text` is valid UTF-8.
  template <class Visit>
  void ForEach(std::string_view text, Visit visit) const {
    for (std::size_t from = 0, begin = 0; from < text.size();) {
      const std::size_t end = Find(text, from, begin);
      if (end == std::string_view::npos) return;
      if (!visit(begin, end)) return;
      from = end;
    }
  }

 private:
  friend class RegexCompiler;

  enum class Op : std::uint8_t {
    kSet,
    kSplit,
    kJump,
    kLineBegin,
    kLineEnd,
    kTextEnd,
    kBoundary,
    kLook,
    kBehind,
    kAtomic,
    kMatch
  };
  struct Instruction {
    Op op;
    /// Index of the set (of a boundary: of the characters of words); next instruction; end of a lookahead or atomic
    /// group.
    std::uint32_t first = 0;
    std::uint32_t second = 0;  ///< alternative instruction; 1: the lookahead, look-behind or boundary is negative
  };
  /// Sorted ranges of code points.
  struct CharacterSet {
    std::vector<std::pair<char32_t, char32_t>> ranges;
    std::bitset<128> ascii;
    bool Has(char32_t code) const;
  };

  /// Returns the end of the first match from `from` on, and its start in `begin`. npos if there is none.
  std::size_t Find(std::string_view text, std::size_t from, std::size_t& begin) const;
  /// Returns whether the set has the character in front of `at`. False at the start of the text.
  bool HasBefore(std::uint32_t set, std::string_view text, std::size_t at) const;
  /// Runs the program from `pc` on. Returns the end of its match at `at`. npos if it does not match.
  std::size_t Match(std::uint32_t pc, std::string_view text, std::size_t at) const;

  std::vector<Instruction> program_;
  std::vector<CharacterSet> sets_;
  CharacterSet begins_;  ///< the characters that a match may begin with
};

}  // namespace millrace::tokenizer
