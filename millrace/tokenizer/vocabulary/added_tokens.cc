#include "millrace/tokenizer/vocabulary/added_tokens.h"

#include <algorithm>
#include <map>
#include <utility>

#include "millrace/base/result.h"
#include "millrace/tokenizer/unicode/unicode.h"
#include "millrace/tokenizer/unicode/utf8.h"

namespace millrace::tokenizer {
namespace {

/// The character that ends at the end of `text`, which is not empty.
DecodedCharacter LastCharacter(std::string_view text) {
  const char* end = text.data() + text.size();
  for (std::uint32_t length = 1; length <= 4 && length <= text.size(); ++length) {
    DecodedCharacter character = DecodeUtf8(end - length, end);
    if (character.code != kInvalid && character.length == length) return character;
  }
  return {};
}

bool IsBlank(DecodedCharacter character) { return character.code != kInvalid && IsWhiteSpace(character.code); }

}  // namespace

AddedTokens::AddedTokens(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)), words_(0) {
  std::vector<ByteTrie::Key> keys;
  for (std::size_t i = 0; i < tokens_.size(); ++i) keys.push_back({tokens_[i].text, static_cast<std::int32_t>(i)});
  trie_ = ByteTrie(std::move(keys));
  some_in_text_ = !std::ranges::all_of(tokens_, &AddedToken::special);
  if (std::ranges::any_of(tokens_, &AddedToken::single_word)) FillWordCharacters(words_);
}

Result<DividedTokens> DivideTokens(std::vector<AddedToken> tokens,
                                   const std::function<std::string(std::string_view)>& normalize) {
  std::vector<AddedToken> raw, normalized;
  std::map<std::string, TokenId> seen;
  for (AddedToken& token : tokens) {
    if (!token.normalized) {
      raw.push_back(std::move(token));
      continue;
    }
    std::string text = normalize(token.text);
    if (text.empty()) {
      return Fail(Code::kUnsupported, "an added token of which normalizing leaves nothing (\"{}\") is not supported",
                  token.text);
    }
    if (seen.emplace(text, token.id).first->second != token.id) {
      return Fail(Code::kUnsupported,
                  "two added tokens that are one when they are normalized (\"{}\") are not supported", text);
    }
    token.text = std::move(text);
    normalized.push_back(std::move(token));
  }
  const bool any = !normalized.empty();
  return DividedTokens{AddedTokens(std::move(raw)), AddedTokens(std::move(normalized)), any};
}

bool AddedTokens::Widen(const AddedToken& token, std::string_view text, std::size_t done, std::size_t& begin,
                        std::size_t& end) const {
  auto first = [&](std::size_t at) { return DecodeUtf8(text.data() + at, text.data() + text.size()); };
  auto in_word = [&](DecodedCharacter character) { return character.code != kInvalid && words_[character.code] != 0; };
  if (token.single_word) {
    if (begin > 0 && in_word(LastCharacter(text.substr(0, begin)))) return false;
    if (end < text.size() && in_word(first(end))) return false;
  }
  if (token.lstrip) {
    while (begin > 0 && IsBlank(LastCharacter(text.substr(0, begin)))) {
      begin -= LastCharacter(text.substr(0, begin)).length;
    }
    begin = std::max(begin, done);
  }
  while (token.rstrip && end < text.size() && IsBlank(first(end))) end += first(end).length;
  return true;
}

}  // namespace millrace::tokenizer
