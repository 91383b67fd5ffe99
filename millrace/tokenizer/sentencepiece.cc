#include "millrace/tokenizer/sentencepiece.h"

#include <sentencepiece_processor.h>

#include <string>
#include <utility>

#include "millrace/base/crc.h"
#include "millrace/tokenizer/sentencepiece_model.h"

namespace millrace::tokenizer {
namespace {

constexpr std::string_view kSpaceMark = "\xE2\x96\x81";  // U+2581, how pieces write a space

/// Texts are encoded in parts of about this size where that is exact. The library's merge queue spans its whole input:
/// parts that stay in the CPU's cache are much faster (docs/benchmarks.md) and keep its memory, many times the text,
/// small.
constexpr std::size_t kPartBytes = 2048;

class SentencePieceTokenizer final : public Tokenizer {
 public:
  static Result<std::shared_ptr<const Tokenizer>> Load(ByteSpan model, std::string_view name) {
    auto made = std::shared_ptr<SentencePieceTokenizer>(new SentencePieceTokenizer);
    auto traits = ReadSentencePieceTraits(model);
    if (!traits) return Fail(traits.error().Context(fmt::format("loading the tokenizer {}", name)));
    if (traits->algorithm != SentencePieceTraits::Algorithm::kBpe) {
      return Fail(Code::kUnsupported, "tokenizer {}: a SentencePiece model, but not of the BPE kind", name);
    }
    auto status = made->processor_.LoadFromSerializedProto(AsText(model));
    if (!status.ok()) {
      return Fail(Code::kInvalidArgument, "loading the tokenizer {}: {}", name, status.ToString());
    }
    made->fingerprint_ = fmt::format("{:08x}", Crc32c(model));
    made->cuts_are_exact_ = made->CutsAreExact(*traits);
    return made;
  }

  Status Encode(std::string_view text, std::vector<TokenId>& ids) const override {
    return EncodeFirst(text, std::string_view::npos, ids);
  }

  Status EncodeFirst(std::string_view text, std::size_t count, std::vector<TokenId>& ids) const override {
    std::size_t before = ids.size();
    std::size_t part_bytes = cuts_are_exact_ ? kPartBytes : text.size();
    for (std::size_t start = 0; start < text.size() && ids.size() - before < count;) {
      std::size_t end = part_bytes < text.size() - start ? NextCut(text, start + part_bytes) : text.size();
      MR_TRY(EncodePart(text.substr(start, end - start), ids));
      start = end == text.size() ? end : end + 1;  // the library puts the cut space back as its dummy prefix
    }
    if (ids.size() - before > count) ids.resize(before + count);
    return {};
  }

  Result<std::string> Decode(std::span<const TokenId> ids) const override {
    std::vector<int> visible;
    visible.reserve(ids.size());
    for (TokenId id : ids) {
      MR_TRY(CheckId(id));
      if (!processor_.IsControl(id) && !processor_.IsUnknown(id)) visible.push_back(id);
    }
    std::string text;
    auto status = processor_.Decode(visible, &text);
    if (!status.ok()) return Fail(Code::kInternal, "decoding {} tokens: {}", ids.size(), status.ToString());
    return text;
  }

  Result<std::string> Piece(TokenId id) const override {
    MR_TRY(CheckId(id));
    return processor_.IdToPiece(id);
  }

  int vocab_size() const override { return processor_.GetPieceSize(); }
  TokenId bos() const override { return processor_.bos_id(); }
  TokenId eos() const override { return processor_.eos_id(); }
  TokenId unk() const override { return processor_.unk_id(); }
  std::string_view kind() const override { return "sentencepiece-bpe"; }
  const std::string& fingerprint() const override { return fingerprint_; }

 private:
  SentencePieceTokenizer() = default;

  /// A merge never reaches over a cut when every piece keeps its spaces in front, and a cut space comes back as the
  /// dummy prefix of the part behind it when the normaliser changes nothing else.
  bool CutsAreExact(const SentencePieceTraits& traits) const {
    if (traits.has_character_map || !traits.add_dummy_prefix || traits.remove_extra_whitespaces ||
        !traits.escape_whitespaces || traits.whitespace_is_suffix) {
      return false;
    }
    for (int id = 0; id < vocab_size(); ++id) {
      std::string_view piece = processor_.IdToPiece(id);
      while (piece.starts_with(kSpaceMark)) piece.remove_prefix(kSpaceMark.size());
      if (piece.find(kSpaceMark) != piece.npos) return false;
    }
    return true;
  }

  Status EncodePart(std::string_view text, std::vector<TokenId>& ids) const {
    std::vector<int> part;
    auto status = processor_.Encode(text, &part);
    if (!status.ok()) return Fail(Code::kInternal, "encoding {} bytes: {}", text.size(), status.ToString());
    ids.insert(ids.end(), part.begin(), part.end());
    return {};
  }

  Status CheckId(TokenId id) const {
    if (id >= 0 && id < vocab_size()) return {};
    return Fail(Code::kInvalidArgument, "token {} is outside the vocabulary of {}", id, vocab_size());
  }

  sentencepiece::SentencePieceProcessor processor_;
  std::string fingerprint_;
  bool cuts_are_exact_ = false;
};

}  // namespace

std::size_t NextCut(std::string_view text, std::size_t from) {
  for (std::size_t at = text.find(' ', from); at != text.npos && at + 1 < text.size(); at = text.find(' ', at + 1)) {
    std::string_view before = text.substr(0, at);
    if (at > 0 && !before.ends_with(' ') && !before.ends_with(kSpaceMark)) return at;
  }
  return text.size();
}

Result<std::shared_ptr<const Tokenizer>> LoadSentencePiece(ByteSpan model, std::string_view name) {
  return SentencePieceTokenizer::Load(model, name);
}

Result<std::shared_ptr<const Tokenizer>> Load(ByteSpan model, std::string_view name) {
  return LoadSentencePiece(model, name);
}

}  // namespace millrace::tokenizer
