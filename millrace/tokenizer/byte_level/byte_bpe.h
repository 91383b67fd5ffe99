// Byte-level BPE: merges the bytes of a word by rank. GPT-2, Llama 3 and the vocabularies of tiktoken.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/tokenizer/splitting/splitter.h"
#include "millrace/tokenizer/vocabulary/vocabulary_tokenizer.h"

namespace millrace::tokenizer {

/// A byte-level vocabulary as a file of any format describes it.
struct ByteBpeSpec {
  struct Merge {
    TokenId left, right, merged;
  };
  std::vector<std::string> tokens;  ///< bytes by id; empty for special and unused ids
  /// In order of rank. Without a list, two tokens merge if their bytes together are a token; its id is the rank
  /// (tiktoken).
  std::optional<std::vector<Merge>> merges;
  bool whole_words_first = true;  ///< a word that is a token becomes this token, even if its bytes do not merge to it
  bool add_prefix_space = false;  ///< put a space in front of a text that does not begin with one
  SplitPattern pattern = SplitPattern::kGpt2;
  bool compose = false;  ///< compose texts (NFC) first
  std::vector<AddedToken> added;
  NamedTokens named;
};

/// Errors: kInvalidArgument if some byte has no token or a token occurs twice; kUnsupported for tokens of over 4 KiB.
Result<std::shared_ptr<const Tokenizer>> MakeByteBpe(ByteBpeSpec spec, std::string fingerprint);

}  // namespace millrace::tokenizer
