// The pre-tokenizer of a tokenizer.json, which divides normalized text into the words that its model sees.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "millrace/tokenizer/huggingface/regex.h"
#include "millrace/tokenizer/splitting/splitter.h"
#include "millrace/tokenizer/tables/code_point_map.h"

namespace millrace::tokenizer {

/// A slice of a text while the text is divided. Borrows the text.
struct HfTextSlice {
  std::string_view text;
  /// How many bytes at the beginning the library aligns with the first character of the whole text. Only Metaspace with
  /// prefix_scheme "first" uses it.
  std::size_t head = 0;

  /// Returns the bytes [begin, end).
  HfTextSlice Slice(std::size_t begin, std::size_t end) const {
    return {text.substr(begin, end - begin), begin < head ? (end < head ? end : head) - begin : 0};
  }
};

/// A reference to a callable that takes a slice, and returns false to stop. Must not outlive the callable.
class HfTextSliceVisitor {
 public:
  template <class Call>
    requires(!std::same_as<Call, HfTextSliceVisitor>)  // a copy refers to what its original does
  explicit HfTextSliceVisitor(Call& call)
      : object_(&call),
        call_([](void* object, HfTextSlice stretch) { return (*static_cast<Call*>(object))(stretch); }) {}
  bool operator()(HfTextSlice stretch) const { return call_(object_, stretch); }

 private:
  void* object_;
  bool (*call_)(void*, HfTextSlice);
};

/// Runs the steps of Hugging Face's pre-tokenizers. Each step divides the slices of the step before. Immutable; any
/// thread.
class HfPreTokenizer {
 public:
  /// The treatment of a match, with the library's names.
  enum class Behavior : std::uint8_t { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };
  enum class CharacterKind : std::uint8_t { kWhiteSpace = 1, kPunctuation = 2, kNumber = 4, kWord = 8 };
  enum class Prefix : std::uint8_t { kNever, kFirst, kAlways };

  /// Each character of a kind is a match.
  struct AtCharacters {
    CharacterKind kind = CharacterKind::kWhiteSpace;
    Behavior behavior = Behavior::kRemoved;
  };
  /// Runs of characters of words, and runs of other characters, without white space.
  struct WordRuns {};
  struct AtText {
    std::string text;  ///< not empty
    Behavior behavior = Behavior::kRemoved;
    bool invert = false;  ///< the text between matches counts as the matches
  };
  struct AtPattern {
    Splitter splitter;  ///< each of its words is a match
    Behavior behavior = Behavior::kIsolated;
    bool invert = false;
  };
  struct AtRegex {
    Regex regex;
    Behavior behavior = Behavior::kIsolated;
    bool invert = false;
  };
  struct Metaspace {
    std::string replacement;  ///< one character
    Prefix prefix = Prefix::kAlways;
    bool split = true;
  };
  struct ByteLevel {
    bool add_prefix_space = true;
    bool use_regex = true;
  };
  struct FixedLength {
    std::size_t characters = 5;  ///< not 0
  };
  using Step = std::variant<AtCharacters, WordRuns, AtText, AtPattern, AtRegex, Metaspace, ByteLevel, FixedLength>;

  explicit HfPreTokenizer(std::vector<Step> steps);

  /// Returns whether the words depend on where the text begins.
  bool asks_for_head() const { return asks_for_head_; }
  /// Calls visit for each word, until it returns false. No word is empty. REQUIRES: the text is valid UTF-8.
  void ForEachWord(HfTextSlice text, HfTextSliceVisitor visit) const;

 private:
  /// A text for each step, for steps that change the text.
  using Buffers = std::vector<std::string>;

  bool Take(std::size_t step, HfTextSlice stretch, Buffers& buffers, HfTextSliceVisitor visit) const;
  bool Run(const AtCharacters& step, HfTextSlice stretch, std::string& buffer, HfTextSliceVisitor next) const;
  bool Run(const WordRuns& step, HfTextSlice stretch, std::string& buffer, HfTextSliceVisitor next) const;
  bool Run(const AtText& step, HfTextSlice stretch, std::string& buffer, HfTextSliceVisitor next) const;
  bool Run(const AtPattern& step, HfTextSlice stretch, std::string& buffer, HfTextSliceVisitor next) const;
  bool Run(const AtRegex& step, HfTextSlice stretch, std::string& buffer, HfTextSliceVisitor next) const;
  bool Run(const Metaspace& step, HfTextSlice stretch, std::string& buffer, HfTextSliceVisitor next) const;
  bool Run(const ByteLevel& step, HfTextSlice stretch, std::string& buffer, HfTextSliceVisitor next) const;
  bool Run(const FixedLength& step, HfTextSlice stretch, std::string& buffer, HfTextSliceVisitor next) const;

  std::vector<Step> steps_;
  Splitter gpt2_;
  CodePointMap<std::uint8_t> kinds_;  ///< CharacterKind bits
  bool asks_for_head_ = false;
};

}  // namespace millrace::tokenizer
