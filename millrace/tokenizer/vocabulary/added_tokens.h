// Tokens that are found in a text as a whole, before anything else is done with it.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/tokenizer/tables/byte_trie.h"
#include "millrace/tokenizer/tables/code_point_map.h"
#include "millrace/tokenizer/tokenizer.h"

namespace millrace::tokenizer {

/// As Hugging Face's files describe one.
struct AddedToken {
  std::string text;
  TokenId id = kNoToken;
  bool special = true;       ///< found on request only; others are found in every text
  bool single_word = false;  ///< only where no letter, digit or the like stands beside it
  bool lstrip = false;       ///< takes the white space in front of it
  bool rstrip = false;       ///< … behind it
  bool normalized = false;   ///< looked for after the text was normalized
};

/// Finds them: from the left, the longest of several that begin at one place. Immutable; any thread.
class AddedTokens {
 public:
  AddedTokens() : AddedTokens(std::vector<AddedToken>()) {}
  explicit AddedTokens(std::vector<AddedToken> tokens);

  /// Visits a text in order: part(text, is_first) for what stands between tokens, token(id) for each of them, until one
  /// of them returns false. Without `specials`, special ones are text.
  template <class Part, class Token>
  void ForEach(std::string_view text, bool specials, Part part, Token token) const {
    std::size_t done = 0;
    ByteTrie::Match match;
    for (std::size_t at = specials || some_in_text_ ? 0 : text.size();
         (at = trie_.empty() ? text.size() : trie_.Find(text, at, match)) < text.size(); at += match.length) {
      const AddedToken& found = tokens_[static_cast<std::size_t>(match.value)];
      std::size_t begin = at, end = at + match.length;
      if ((found.special && !specials) || !Widen(found, text, done, begin, end)) continue;
      if (done < begin && !part(text.substr(done, begin - done), done == 0)) return;
      // As the library has it: nothing is left of a token that the white space of others took, but what begins behind
      // it is found again if it takes no white space itself.
      if (begin < end && !token(found.id)) return;
      done = end;
    }
    if (done < text.size()) part(text.substr(done), done == 0);
  }

 private:
  /// What the token at [begin, end) takes; false where it must not be.
  bool Widen(const AddedToken& token, std::string_view text, std::size_t done, std::size_t& begin,
             std::size_t& end) const;

  std::vector<AddedToken> tokens_;
  ByteTrie trie_;                     ///< of indices into tokens_
  bool some_in_text_ = false;         ///< not all of them are special
  CodePointMap<std::uint8_t> words_;  ///< 1: a character of a word (\w); filled if some token must be a single word
};

/// Added tokens by what they are looked for in.
struct DividedTokens {
  AddedTokens raw;         ///< texts as they are
  AddedTokens normalized;  ///< what normalizing makes of what is between those
  bool any_normalized = false;
};
/// `normalize` is done to the tokens of the second kind as well. Fails with kUnsupported where that leaves nothing of
/// one, or makes one of two: the reference then takes either of them, now this and now that.
Result<DividedTokens> DivideTokens(std::vector<AddedToken> tokens,
                                   const std::function<std::string(std::string_view)>& normalize);

}  // namespace millrace::tokenizer
