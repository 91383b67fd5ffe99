#include "millrace/tokenizer/tokenizer.h"

#include "millrace/base/hash/crc.h"
#include "millrace/tokenizer/huggingface/hf_json.h"
#include "millrace/tokenizer/sentencepiece/sentencepiece.h"
#include "millrace/tokenizer/tiktoken/tiktoken.h"
#include "millrace/tokenizer/unicode/utf8.h"
#include "millrace/tokenizer/wordpiece/wordpiece.h"

namespace millrace::tokenizer {

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

Result<std::shared_ptr<const Tokenizer>> Load(ByteSpan model, std::string_view name, const LoadOptions& options) {
  std::string_view text = AsText(model);
  std::string fingerprint = fmt::format("{:08x}", Crc32c(model));
  auto loaded = [&]() -> Result<std::shared_ptr<const Tokenizer>> {
    std::size_t first = text.find_first_not_of(" \t\r\n");
    if (first != text.npos && text[first] == '{') return LoadJson(text, std::move(fingerprint));
    if (LooksLikeTiktoken(text)) return LoadTiktoken(text, name, options, std::move(fingerprint));
    if (LooksLikeBertVocabulary(text)) return LoadBertVocabulary(text, std::move(fingerprint));
    return LoadSentencePiece(model, std::move(fingerprint));
  }();
  if (!loaded) return Fail(loaded.error().Context(fmt::format("loading the tokenizer {}", name)));
  return loaded;
}

}  // namespace millrace::tokenizer
