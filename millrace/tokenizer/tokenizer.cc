#include "millrace/tokenizer/tokenizer.h"

#include "millrace/tokenizer/unicode/utf8.h"

namespace millrace::tokenizer {

Status Tokenizer::EncodeFirst(std::string_view text, std::size_t count, std::vector<TokenId>& ids) const {
  std::size_t before = ids.size();
  MR_TRY(Encode(text, ids));
  if (ids.size() - before > count) ids.resize(before + count);
  return {};
}

Status Tokenizer::DecodeNext(DecodeState& state, TokenId id, std::string& text) const {
  state.pending += MR_TRY(Decode(std::span(&id, 1)));
  std::size_t certain = state.pending.size() - UnfinishedEnd(state.pending);
  text.append(state.pending, 0, certain);
  state.pending.erase(0, certain);
  return {};
}

void Tokenizer::DecodeEnd(DecodeState& state, std::string& text) const { text += state.pending; }

TokenId Tokenizer::IdOf(std::string_view piece) const {
  for (TokenId id = 0; id < vocab_size(); ++id) {
    auto found = Piece(id);
    if (found && *found == piece) return id;
  }
  return kNoToken;
}

}  // namespace millrace::tokenizer
