#include "millrace/tokenizer/vocabulary/vocabulary_tokenizer.h"

#include "millrace/base/text.h"

namespace millrace::tokenizer {

Status VocabularyTokenizer::EncodeSome(std::string_view text, std::size_t count, bool specials,
                                       std::vector<TokenId>& ids) const {
  constexpr std::size_t kMaxTextBytes = (1u << 31) - 1;
  if (text.size() > kMaxTextBytes) {
    return Fail(Code::kInvalidArgument, "a text of {} cannot be encoded at once; split it", FormatBytes(text.size()));
  }
  if (text.empty() || count == 0) return {};
  WorkspacePool::Lease workspace(workspaces_);
  IdWriter writer(ids, count);
  auto part = [&](std::string_view between, bool first) {
    EncodeSegment({between, first, specials}, *workspace, writer);
    return !writer.full();
  };
  auto token = [&](TokenId id) {
    writer.Append(id);
    return !writer.full();
  };
  added_.ForEach(text, specials, part, token);
  return {};
}

Result<std::string> VocabularyTokenizer::Decode(std::span<const TokenId> ids) const {
  std::string text;
  DecodeState state;
  for (TokenId id : ids) MR_TRY(DecodeNext(state, id, text));
  DecodeEnd(state, text);
  return text;
}

Status VocabularyTokenizer::CheckIds(std::span<const TokenId> ids) const {
  for (TokenId id : ids) {
    if (id >= 0 && id < strings_.size()) continue;
    return Fail(Code::kInvalidArgument, "token {} is outside the vocabulary of {}; ids must come from this tokenizer",
                id, strings_.size());
  }
  return {};
}

Status VocabularyTokenizer::CheckPiece(std::string_view piece) {
  if (piece.size() <= kMaxPieceBytes) return {};
  return Fail(Code::kUnsupported, "the tokenizer has a token of {}; the longest supported are of {}",
              FormatBytes(piece.size()), FormatBytes(kMaxPieceBytes));
}

}  // namespace millrace::tokenizer
