#include "millrace/tokenizer/formats/load.h"

#include <utility>

#include "millrace/base/hash/crc.h"
#include "millrace/base/json.h"
#include "millrace/tokenizer/formats/tekken.h"
#include "millrace/tokenizer/formats/tiktoken.h"
#include "millrace/tokenizer/huggingface/hf_json.h"
#include "millrace/tokenizer/sentencepiece/sentencepiece.h"
#include "millrace/tokenizer/wordpiece/wordpiece.h"

namespace millrace::tokenizer {
namespace {

/// A tokenizer.json or a tekken.json.
Result<std::shared_ptr<const Tokenizer>> LoadJson(std::string_view text, std::string fingerprint) {
  nlohmann::json json = MR_TRY(ParseJsonTree(text, "it"));
  if (IsTekken(json)) return LoadTekken(json, std::move(fingerprint));
  return LoadTokenizerJson(std::move(json), std::move(fingerprint));
}

}  // namespace

Result<std::shared_ptr<const Tokenizer>> Load(ByteSpan model, std::string_view name, const LoadOptions& options) {
  std::string_view text = AsText(model);
  std::string fingerprint = fmt::format("{:08x}", Crc32c(model));
  auto loaded = [&]() -> Result<std::shared_ptr<const Tokenizer>> {
    std::size_t first = text.find_first_not_of(" \t\r\n");
    if (first != text.npos && text[first] == '{') return LoadJson(text, std::move(fingerprint));
    if (LooksLikeTiktoken(text)) return LoadTiktoken(text, name, options.pattern, std::move(fingerprint));
    if (LooksLikeBertVocabulary(text)) return LoadBertVocabulary(text, std::move(fingerprint));
    return LoadSentencePiece(model, std::move(fingerprint));
  }();
  if (!loaded) return Fail(loaded.error().Context(fmt::format("loading the tokenizer {}", name)));
  return loaded;
}

}  // namespace millrace::tokenizer
