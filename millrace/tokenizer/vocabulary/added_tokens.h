// Added tokens: tokens that are found in a text as a whole, before the text is encoded.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/tokenizer/tables/byte_trie.h"
#include "millrace/tokenizer/tables/code_point_map.h"
#include "millrace/tokenizer/tokenizer.h"

namespace millrace::tokenizer {

/// An added token as Hugging Face's files describe it.
struct AddedToken {
  std::string text;
  TokenId id = kNoToken;
  bool special = true;       ///< found only on request; other added tokens are found in every text
  bool single_word = false;  ///< found only if no character of a word (\w) stands beside it
  bool lstrip = false;       ///< also takes the white space in front of it
  bool rstrip = false;       ///< also takes the white space behind it
  bool normalized = false;   ///< searched in the normalized text
};

/// Finds added tokens in a text, from the left. If several begin at one position, the longest counts. Immutable; any
/// thread.
class AddedTokens {
 public:
  AddedTokens() : AddedTokens(std::vector<AddedToken>()) {}
  explicit AddedTokens(std::vector<AddedToken> tokens);

  /// Visits a text in order: calls token(id) for each added token, and part(text, is_first) for the text between them.
  /// Stops when a call returns false. Without `specials`, special tokens are text.
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
      // As in the library, a token is dropped if the white space that the token before took covers all of it. `done`
      // moves back to the end of the dropped token, so the text behind it is found again.
      if (begin < end && !token(found.id)) return;
      done = end;
    }
    if (done < text.size()) part(text.substr(done), done == 0);
  }

 private:
  /// Widens [begin, end) by the white space that the token takes. Returns false if the token is not allowed there.
  bool Widen(const AddedToken& token, std::string_view text, std::size_t done, std::size_t& begin,
             std::size_t& end) const;

  std::vector<AddedToken> tokens_;
  ByteTrie trie_;                     ///< its values are indices into tokens_
  bool some_in_text_ = false;         ///< some token is not special
  CodePointMap<std::uint8_t> words_;  ///< 1 for a character of a word (\w); filled if some token has single_word
};

/// Added tokens, divided by the text in which they are searched.
struct DividedTokens {
  AddedTokens raw;         ///< searched in the text itself
  AddedTokens normalized;  ///< searched in the normalized text between those
  bool any_normalized = false;
};
/// Divides `tokens`, and normalizes the text of those that are searched in normalized text.
/// Errors: kUnsupported if the normalized text of a token is empty, or equals that of another token: then the reference
/// takes one of them at random.
Result<DividedTokens> DivideTokens(std::vector<AddedToken> tokens,
                                   const std::function<std::string(std::string_view)>& normalize);

}  // namespace millrace::tokenizer
