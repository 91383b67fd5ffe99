// The decoder of a tokenizer.json, which turns tokens back into text.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "millrace/tokenizer/huggingface/hf_file.h"
#include "millrace/tokenizer/huggingface/regex.h"

namespace millrace::tokenizer::hf {

/// Runs the steps of a decoder. Each step gets the tokens of the step before. Immutable; any thread.
class TokenDecoder {
 public:
  /// Errors: kUnsupported, with its name, for a decoder that Millrace does not support.
  static Result<TokenDecoder> Read(const Json& decoder);

  /// Returns the text of all tokens. A byte-level decoder, which stands alone, keeps invalid bytes.
  std::string Decode(std::vector<std::string> tokens) const;
  /// Returns whether Decode() returns the concatenation of DecodeOne() of each token.
  bool goes_by_token() const { return goes_by_token_; }
  /// Returns the text of one token, which may end within a character. `first`: no token was decoded before.
  std::string DecodeOne(std::string token, bool first) const;

 private:
  using Tokens = std::vector<std::string>;
  struct Replace {
    std::string from, to;
  };
  struct ReplaceMatches {
    Regex regex;
    std::string to;
  };
  struct Bytes {};         ///< ByteLevel
  struct ByteFallback {};  ///< tokens such as <0x0A>
  struct Fuse {};
  struct Strip {
    std::string content;  ///< one character
    std::size_t start, stop;
  };
  struct Metaspace {
    std::string replacement;
    bool strips;  ///< the first token has no spaces
  };
  struct WordPiece {
    std::string prefix;
    bool cleanup;
  };
  struct EndOfWord {
    std::string suffix;
  };
  struct Spaced {};  ///< no decoder: tokens with spaces between them
  struct Ctc {
    std::string pad, word_delimiter;
    bool cleanup;
  };
  using Step = std::variant<Replace, ReplaceMatches, Bytes, ByteFallback, Fuse, Strip, Metaspace, WordPiece, EndOfWord,
                            Spaced, Ctc>;

  static Result<Step> ReadStep(const Json& json);
  static Result<Step> ReadReplace(const Json& json);
  static Tokens Apply(const Replace& step, Tokens tokens);
  static Tokens Apply(const ReplaceMatches& step, Tokens tokens);
  static Tokens Apply(const Bytes& step, Tokens tokens);
  static Tokens Apply(const ByteFallback& step, Tokens tokens);
  static Tokens Apply(const Fuse& step, Tokens tokens);
  static Tokens Apply(const Strip& step, Tokens tokens);
  static Tokens Apply(const Metaspace& step, Tokens tokens, bool first = true);
  static Tokens Apply(const WordPiece& step, Tokens tokens, bool first = true);
  static Tokens Apply(const EndOfWord& step, Tokens tokens);
  static Tokens Apply(const Spaced& step, Tokens tokens, bool first = true);
  static Tokens Apply(const Ctc& step, Tokens tokens);

  std::vector<Step> steps_;
  bool goes_by_token_ = false;
};

}  // namespace millrace::tokenizer::hf
