// How a tokenizer.json divides normalized text into the words that its model sees.
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

/// A part of a text while it is divided. Does not own its text.
struct HfStretch {
  std::string_view text;
  /// How many bytes at its beginning the library aligns with the first character of the whole text. Only Metaspace's
  /// "first" asks for that.
  std::size_t head = 0;

  /// The bytes [begin, end).
  HfStretch Part(std::size_t begin, std::size_t end) const {
    return {text.substr(begin, end - begin), begin < head ? (end < head ? end : head) - begin : 0};
  }
};

/// A reference to a callable that takes a stretch and returns false when no more are wanted. Must not outlive it.
class HfStretchVisitor {
 public:
  template <class Call>
    requires(!std::same_as<Call, HfStretchVisitor>)  // a copy refers to what its original does
  explicit HfStretchVisitor(Call& call)
      : object_(&call), call_([](void* object, HfStretch stretch) { return (*static_cast<Call*>(object))(stretch); }) {}
  bool operator()(HfStretch stretch) const { return call_(object_, stretch); }

 private:
  void* object_;
  bool (*call_)(void*, HfStretch);
};

/// The steps of Hugging Face's pre-tokenizers, each on what the ones before it left. Immutable; any thread.
class HfPreTokenizer {
 public:
  /// What becomes of a match: the names of the library.
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
    bool invert = false;  ///< matches are what is between
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

  /// Whether what it does depends on where the text begins.
  bool asks_for_head() const { return asks_for_head_; }
  /// Calls visit for each word, none of which is empty, until it returns false. REQUIRES: the text is valid UTF-8.
  void ForEachWord(HfStretch text, HfStretchVisitor visit) const;

 private:
  /// Texts that steps make, one for each step.
  using Buffers = std::vector<std::string>;

  bool Take(std::size_t step, HfStretch stretch, Buffers& buffers, HfStretchVisitor visit) const;
  bool Run(const AtCharacters& step, HfStretch stretch, std::string& buffer, HfStretchVisitor next) const;
  bool Run(const WordRuns& step, HfStretch stretch, std::string& buffer, HfStretchVisitor next) const;
  bool Run(const AtText& step, HfStretch stretch, std::string& buffer, HfStretchVisitor next) const;
  bool Run(const AtPattern& step, HfStretch stretch, std::string& buffer, HfStretchVisitor next) const;
  bool Run(const AtRegex& step, HfStretch stretch, std::string& buffer, HfStretchVisitor next) const;
  bool Run(const Metaspace& step, HfStretch stretch, std::string& buffer, HfStretchVisitor next) const;
  bool Run(const ByteLevel& step, HfStretch stretch, std::string& buffer, HfStretchVisitor next) const;
  bool Run(const FixedLength& step, HfStretch stretch, std::string& buffer, HfStretchVisitor next) const;

  std::vector<Step> steps_;
  Splitter gpt2_;
  CodePointMap<std::uint8_t> kinds_;  ///< CharacterKind bits
  bool asks_for_head_ = false;
};

}  // namespace millrace::tokenizer
