// Splits a text into words as the regular expressions of byte-level tokenizers do, in code that was written by hand.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "millrace/tokenizer/splitting/deepseek_splitter.h"
#include "millrace/tokenizer/splitting/early_deepseek_splitter.h"
#include "millrace/tokenizer/unicode/unicode.h"
#include "millrace/tokenizer/unicode/utf8.h"

namespace millrace::tokenizer {

/// The regular expressions by which a vocabulary splits text into words.
enum class SplitPattern : std::uint8_t {
  /// 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
  kGpt2,
  /// As kGpt2, but first every number (\p{N}) becomes a word of its own (StarCoder, SmolLM).
  kGpt2Digits,
  /// (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|
  /// ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
  kLlama3,
  /// As kLlama3, but white space at the end of the text is one word, newlines or not (tiktoken's \s++$).
  kCl100k,
  /// As kLlama3, but every number (\p{N}) is a word of its own.
  kQwen2,
  /// With U for [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}], L for [\p{Ll}\p{Lm}\p{Lo}\p{M}] and 's for
  /// (?i:'s|'t|'re|'ve|'m|'ll|'d): [^\r\n\p{L}\p{N}]?U*L+'s?|[^\r\n\p{L}\p{N}]?U+L*'s?|\p{N}{1,3}|
  /// ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+
  kO200k,
  /// As kO200k, without 's and with every number a word of its own (Mistral's Tekken).
  kTekken,
  /// DeepSeek V3 and R1: see deepseek_splitter.h.
  kDeepSeek3,
  /// DeepSeek LLM and V2, and DeepSeek Coder: see early_deepseek_splitter.h.
  kDeepSeek2,
  kDeepSeekCoder,
};

/// Finds the words of a text. An invalid byte counts as a character that is neither letter, number nor space.
/// Immutable; any thread.
class Splitter {
 public:
  explicit Splitter(SplitPattern pattern);

  /// The end of the word that begins at `at`, which is before `end`, the text's end.
  const char* WordEnd(const char* at, const char* end) const {
    if (deepseek_) return deepseek_->WordEnd(at, end);
    if (early_deepseek_) return early_deepseek_->WordEnd(at, end);
    if (is_gpt2_) return Gpt2WordEnd(at, end);
    return is_o200k_ ? O200kWordEnd(at, end) : Llama3WordEnd(at, end);
  }

 private:
  struct ClassifiedCharacter {
    std::uint8_t kind;  ///< CharClass bits
    std::uint8_t length;
  };
  ClassifiedCharacter Classify(const char* at, const char* end) const {
    auto byte = static_cast<std::uint8_t>(*at);
    if (byte < 0x80) return {ascii_[byte], 1};
    DecodedCharacter character = DecodeUtf8(at, end);
    if (character.code == kInvalid) return {kOther, 1};
    return {classes_[character.code], static_cast<std::uint8_t>(character.length)};
  }
  /// Skips characters that have a bit of `any` or, for kOther, none at all.
  const char* Skip(const char* at, const char* end, std::uint8_t any) const {
    while (at != end) {
      ClassifiedCharacter look = Classify(at, end);
      bool belongs = any == kOther ? !(look.kind & (kLetter | kNumber | kSpace)) : (look.kind & any) != 0;
      if (!belongs) break;
      at += look.length;
    }
    return at;
  }
  /// The length of 's, 't, 're, 've, 'm, 'll or 'd at `at`, which holds an apostrophe; 0 if there is none.
  static std::size_t Contraction(const char* at, const char* end, bool any_case);
  const char* Gpt2WordEnd(const char* at, const char* end) const;
  const char* Llama3WordEnd(const char* at, const char* end) const;
  const char* O200kWordEnd(const char* at, const char* end) const;
  /// Letters and marks of o200k's words: U*L+ or else U+L*.
  struct CasedRun {
    const char* end;  ///< where the run begins if there is none
    bool lower;       ///< it is U*L+
  };
  CasedRun CasedEnd(const char* at, const char* end) const;
  const char* WithoutLettersEnd(const char* at, ClassifiedCharacter look, const char* end) const;
  const char* SpaceEnd(const char* at, const char* end) const;

  SplitPattern pattern_;
  std::optional<DeepSeekSplitter> deepseek_;
  std::optional<EarlyDeepSeekSplitter> early_deepseek_;
  bool is_gpt2_, is_o200k_;  ///< or of its kind
  int longest_number_;
  std::uint8_t ascii_[128];
  CodePointMap<std::uint8_t> classes_;
};

}  // namespace millrace::tokenizer
