// Byte-level BPE: words of bytes, merged by rank. GPT-2, GPT-J, Llama 3, tiktoken's vocabularies.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/tokenizer/splitting/splitter.h"
#include "millrace/tokenizer/vocabulary/vocabulary_tokenizer.h"

namespace millrace::tokenizer {

/// What a file says of a byte-level vocabulary, whatever its format.
struct ByteBpeSpec {
  struct Merge {
    TokenId left, right, merged;
  };
  std::vector<std::string> tokens;  ///< bytes by id; empty for ids that are special or not used
  /// In order of rank. None: what two tokens make together is a token, and its id is its rank (tiktoken).
  std::optional<std::vector<Merge>> merges;
  bool whole_words_first = true;  ///< a word that is a token is that token, even if its bytes do not merge to it
  bool add_prefix_space = false;  ///< a text gets a space in front unless it has one
  SplitPattern pattern = SplitPattern::kGpt2;
  bool compose = false;  ///< texts are put in composed form (NFC) first
  std::vector<AddedToken> added;
  NamedTokens named;
};

/// Fails with kInvalidArgument on a vocabulary that has no token for some byte.
Result<std::shared_ptr<const Tokenizer>> MakeByteBpe(ByteBpeSpec spec, std::string fingerprint);

}  // namespace millrace::tokenizer
