#include "millrace/tokenizer/vocabulary/special_texts.h"

#include <algorithm>

#include "millrace/tokenizer/unicode/utf8.h"

namespace millrace::tokenizer {

/// A special token has no text, and is found where its piece stands in a text.
SpecialTexts::SpecialTexts(const Tokenizer& tokenizer) {
  std::vector<TokenId> ids;
  for (TokenId id = 0; id < tokenizer.vocab_size(); ++id) {
    const auto text = tokenizer.Decode({&id, 1});
    if (!text || !text->empty()) continue;
    auto piece = tokenizer.Piece(id);
    if (!piece || piece->empty()) continue;
    ids.clear();
    if (!tokenizer.EncodeWithSpecials(*piece, ids) || ids != std::vector<TokenId>{id}) continue;
    ids_.push_back(id);
    texts_.push_back(*std::move(piece));
  }
  std::vector<ByteTrie::Key> keys;
  for (std::size_t i = 0; i < texts_.size(); ++i) keys.push_back({texts_[i], static_cast<std::int32_t>(i)});
  trie_ = ByteTrie(std::move(keys));
}

void SpecialTexts::Break(std::string& text) const {
  if (trie_.empty()) return;
  ByteTrie::Match match;
  for (std::size_t at = trie_.Find(text, 0, match); at < text.size(); at = trie_.Find(text, at, match)) {
    at += DecodeUtf8(text.data() + at, text.data() + text.size()).length;
    text.insert(at++, 1, kSpecialBreak);
  }
}

bool SpecialTexts::Has(TokenId id) const { return std::ranges::binary_search(ids_, id); }

std::size_t SpecialTexts::EndOf(std::string_view text) const {
  std::size_t longest = 0;
  for (const std::string& special : texts_) {
    if (special.size() > longest && text.ends_with(special)) longest = special.size();
  }
  return longest;
}

}  // namespace millrace::tokenizer
