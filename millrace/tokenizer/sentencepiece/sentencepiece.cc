#include "millrace/tokenizer/sentencepiece/sentencepiece.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <string>
#include <utility>

#include "millrace/base/text.h"
#include "millrace/tokenizer/sentencepiece/sentencepiece_model.h"
#include "millrace/tokenizer/sentencepiece/spm_bpe.h"
#include "millrace/tokenizer/sentencepiece/spm_normalizer.h"
#include "millrace/tokenizer/sentencepiece/spm_unigram.h"
#include "millrace/tokenizer/unicode/utf8.h"
#include "millrace/tokenizer/vocabulary/token_index.h"
#include "millrace/tokenizer/vocabulary/vocabulary_tokenizer.h"

namespace millrace::tokenizer {
namespace {

using Type = SentencePieceModel::Type;

bool IsReserved(Type type) { return type == Type::kControl || type == Type::kUnknown || type == Type::kByte; }

/// "<0x0A>" → 10.
std::optional<std::uint8_t> ByteOfPiece(std::string_view piece) {
  std::uint8_t value = 0;
  if (piece.size() != 6 || !piece.starts_with("<0x") || piece[5] != '>') return std::nullopt;
  auto [end, error] = std::from_chars(piece.data() + 3, piece.data() + 5, value, 16);
  if (error != std::errc() || end != piece.data() + 5) return std::nullopt;
  return value;
}

class SentencePieceTokenizer final : public VocabularyTokenizer {
 public:
  static Result<std::shared_ptr<const Tokenizer>> Make(const SentencePieceModel& model, std::string fingerprint) {
    auto made = std::shared_ptr<SentencePieceTokenizer>(new SentencePieceTokenizer(std::move(fingerprint)));
    MR_TRY(CheckSupported(model));
    MR_TRY(made->AddPieces(model));
    MR_TRY(made->AddEncoder(model));
    return made;
  }

  Result<std::string> Decode(std::span<const TokenId> ids) const override {
    MR_TRY(CheckIds(ids));
    constexpr std::size_t kLongestOfByte = 3;  // U+FFFD
    std::size_t most = 0;
    for (TokenId id : ids) most += std::max(kLongestOfByte, decoded_[id].size());
    std::string text;
    text.resize_and_overwrite(most + TokenStrings::kSlack,
                              [&](char* to, std::size_t) { return DecodeAll(ids, to) - to; });
    return text;
  }

  Status DecodeNext(DecodeState& state, TokenId id, std::string& text) const override {
    MR_TRY(CheckId(id));
    DecodeOne(state, id, text);
    return {};
  }

  void DecodeEnd(DecodeState& state, std::string& text) const override { FlushBytes(state, true, text); }

  TokenId IdOf(std::string_view piece) const override {
    TokenId reserved = reserved_.Find(piece);
    return reserved != kNoToken ? reserved : others_.Find(piece);
  }

  std::string_view kind() const override { return bpe_ ? "sentencepiece-bpe" : "sentencepiece-unigram"; }

 protected:
  void EncodeSegment(const TextSegment& segment, EncodeWorkspace& workspace, IdWriter& ids) const override {
    bool prefix = normalizer_.add_dummy_prefix() && (segment.first || prefix_every_part_) &&
                  (prefix_marked_ || !(segment.text.starts_with(' ') || segment.text.starts_with(kSpaceMark)));
    if (bpe_ && normalizer_.trivial()) return bpe_->Encode(segment.text, prefix, workspace, ids);
    std::string normalized = std::move(workspace.text);
    normalizer_.Normalize(segment.text, prefix, normalized);
    if (bpe_) {
      bpe_->Encode(normalized, false, workspace, ids);
    } else {
      unigram_->Encode(normalized, workspace, ids);
    }
    workspace.text = std::move(normalized);
  }

 private:
  /// How a token is decoded. kMarked: begins with a space.
  enum class Shape : std::uint8_t { kText, kMarked, kByte, kNothing };

  using VocabularyTokenizer::VocabularyTokenizer;

  static Status CheckSupported(const SentencePieceModel& model) {
    using Algorithm = SentencePieceTraits::Algorithm;
    auto algorithm = model.traits.algorithm;
    if (algorithm != Algorithm::kBpe && algorithm != Algorithm::kUnigram) {
      return Fail(Code::kUnsupported,
                  "the tokenizer is a SentencePiece model of the {} kind; BPE and unigram are supported",
                  algorithm == Algorithm::kWord ? "word" : "char");
    }
    if (model.traits.has_reverse_character_map) {
      return Fail(Code::kUnsupported,
                  "the tokenizer maps characters of decoded text (denormalizer_spec), which is not supported");
    }
    for (const auto& piece : model.pieces) {
      if (piece.type == Type::kUnused && algorithm == Algorithm::kBpe) {
        return Fail(Code::kUnsupported,
                    "the tokenizer's piece \"{}\" is marked unused, which is supported in unigram models only; make it "
                    "a normal one",
                    piece.text);
      }
      MR_TRY(CheckPiece(piece.text));
      if (piece.text.empty() || !IsValidUtf8(piece.text) || !std::isfinite(piece.score)) {
        return Fail(
            Code::kInvalidArgument,
            "the tokenizer has a piece that is empty, not UTF-8 or of no score; each needs a text and a finite score");
      }
    }
    return {};
  }

  Status AddPieces(const SentencePieceModel& model) {
    std::size_t bytes = 0;
    for (const auto& piece : model.pieces) bytes += piece.text.size();
    strings_.Reserve(model.pieces.size(), bytes);
    for (const auto& piece : model.pieces) strings_.Add(piece.text);
    reserved_ = others_ = TokenIndex(strings_, model.pieces.size());
    std::vector<AddedToken> specials;
    bytes_.fill(kNoToken);
    for (TokenId id = 0; id < strings_.size(); ++id) {
      const auto& piece = model.pieces[static_cast<std::size_t>(id)];
      if (!(IsReserved(piece.type) ? reserved_ : others_).Insert(id)) {
        return Fail(Code::kInvalidArgument,
                    "the tokenizer has the piece \"{}\" twice; each piece must be there only once", piece.text);
      }
      AddDecoded(piece);
      if (piece.type == Type::kControl || piece.type == Type::kUnknown) {
        specials.push_back({.text = std::string(piece.text), .id = id});
      }
      if (piece.type == Type::kUnknown && std::exchange(unknown_, id) != kNoToken) {
        return Fail(Code::kInvalidArgument, "the tokenizer has two unknown pieces; only one may have the type UNKNOWN");
      }
      if (piece.type != Type::kByte) continue;
      auto byte = ByteOfPiece(piece.text);
      if (!byte) {
        return Fail(Code::kInvalidArgument,
                    "the tokenizer's byte piece \"{}\" names no byte; expected <0x00> to <0xFF>", piece.text);
      }
      bytes_[*byte] = id;
    }
    if (unknown_ == kNoToken) {
      return Fail(Code::kInvalidArgument,
                  "the tokenizer has no unknown piece; one must have the type UNKNOWN, or be named by unk_id of "
                  "tokenizer.json");
    }
    MR_TRY(CheckBytes(model.traits.byte_fallback));
    if (model.added) specials = *model.added;
    added_ = AddedTokens(std::move(specials));
    auto control = [&](const std::string& piece) {
      TokenId id = IdOf(piece);
      return id != kNoToken && model.pieces[static_cast<std::size_t>(id)].type == Type::kControl ? id : kNoToken;
    };
    named_ = {.bos = control(model.traits.bos_piece),
              .eos = control(model.traits.eos_piece),
              .unk = IdOf(model.traits.unk_piece) == unknown_ ? unknown_ : kNoToken,
              .pad = control(model.traits.pad_piece)};
    return {};
  }

  /// Checks that every byte has a piece. Gemma has the tab as a text piece instead, so such a piece is enough.
  Status CheckBytes(bool wanted) {
    for (int byte = 0; byte < 256; ++byte) {
      const bool there = bytes_[byte] != kNoToken;
      if (there && !wanted) {
        return Fail(Code::kInvalidArgument,
                    "the tokenizer has a piece for the byte {:#04x}, of no use; set byte_fallback, or remove the "
                    "pieces of bytes",
                    byte);
      }
      const char character = static_cast<char>(byte);
      if (there || !wanted || (byte < 0x80 && others_.Find({&character, 1}) != kNoToken)) continue;
      return Fail(Code::kInvalidArgument,
                  "the tokenizer has no piece for the byte {:#04x}; byte_fallback needs <0x00> to <0xFF>: add it, or "
                  "unset byte_fallback",
                  byte);
    }
    return {};
  }

  /// Adds the text that the piece decodes to, with spaces for marks.
  void AddDecoded(const SentencePieceModel::ScoredPiece& piece) {
    std::string text;
    Shape shape = Shape::kText;
    if (piece.type == Type::kControl || piece.type == Type::kUnknown) {
      shape = Shape::kNothing;
    } else if (piece.type == Type::kByte) {
      shape = Shape::kByte;
      text += static_cast<char>(ByteOfPiece(piece.text).value_or(0));
    } else {
      if (piece.text.starts_with(kSpaceMark)) shape = Shape::kMarked;
      text = MarksToSpaces(piece.text);
    }
    decoded_.Add(text);
    shapes_.push_back(shape);
  }

  Status AddEncoder(const SentencePieceModel& model) {
    std::vector<std::string> user_defined;
    for (const auto& piece : model.pieces) {
      if (piece.type == Type::kUserDefined) user_defined.emplace_back(piece.text);
    }
    normalizer_ = MR_TRY(SpmNormalizer::Make(model, user_defined));
    SpmFallback fallback{.unk = unknown_, .to_bytes = model.traits.byte_fallback, .bytes = bytes_};
    if (model.traits.algorithm == SentencePieceTraits::Algorithm::kBpe) {
      bpe_.emplace(model, SpmBpe::Options{.space_is_mark = model.traits.escape_whitespaces, .fallback = fallback});
    } else {
      unigram_.emplace(model, fallback);
    }
    strips_one_ = model.traits.add_dummy_prefix && !model.traits.remove_extra_whitespaces;
    prefix_every_part_ = model.traits.prefix_every_part;
    prefix_marked_ = model.traits.prefix_marked;
    whole_byte_runs_ = model.traits.whole_byte_runs;
    strips_all_ = model.traits.remove_extra_whitespaces;
    return {};
  }

  /// Writes the text of all ids to `to`. Returns its end.
  char* DecodeAll(std::span<const TokenId> ids, char* to) const {
    bool begun = false;
    for (std::size_t i = 0; i < ids.size();) {
      Shape shape = shapes_[static_cast<std::size_t>(ids[i])];
      if (shape == Shape::kByte) {
        to = DecodeBytes(ids, i, to);
        begun = true;
      } else if (begun || shape == Shape::kNothing) {
        to = decoded_.Copy(ids[i++], to);
      } else {
        to = std::ranges::copy(FirstText(ids[i++], begun), to).out;
      }
    }
    return to;
  }

  /// Decodes the run of byte tokens from ids[i] on. Special tokens do not end a run.
  char* DecodeBytes(std::span<const TokenId> ids, std::size_t& i, char* to) const {
    char* end = to;
    for (; i < ids.size() && shapes_[static_cast<std::size_t>(ids[i])] >= Shape::kByte; ++i) {
      end = decoded_.Copy(ids[i], end);
    }
    std::string_view bytes(to, end);
    if (IsValidUtf8(bytes)) return end;
    DecodeState state{.pending = std::string(bytes)};
    std::string text;
    FlushBytes(state, true, text);
    return std::ranges::copy(text, to).out;
  }

  /// Returns the text of the first token that decodes to text.
  std::string_view FirstText(TokenId id, bool& begun) const {
    std::string_view text = decoded_[id];
    bool marked = shapes_[static_cast<std::size_t>(id)] == Shape::kMarked;
    if (marked && (strips_one_ || strips_all_)) text.remove_prefix(1);
    begun = !strips_all_ || !text.empty();
    return text;
  }

  void DecodeOne(DecodeState& state, TokenId id, std::string& text) const {
    auto at = static_cast<std::size_t>(id);
    if (shapes_[at] == Shape::kNothing) return;
    if (shapes_[at] == Shape::kByte) {
      state.pending += decoded_[id];
      return FlushBytes(state, false, text);
    }
    if (!state.pending.empty()) FlushBytes(state, true, text);
    text += state.begun ? decoded_[id] : FirstText(id, state.begun);
  }

  /// Moves characters from the pending bytes to the text, with U+FFFD for invalid bytes. Without `all`, keeps a
  /// character that is still incomplete.
  void FlushBytes(DecodeState& state, bool all, std::string& text) const {
    if (whole_byte_runs_) {
      if (all) FlushRun(state, text);
      return;
    }
    std::string& bytes = state.pending;
    std::size_t at = 0;
    while (at < bytes.size()) {
      DecodedCharacter character = DecodeUtf8(bytes.data() + at, bytes.data() + bytes.size());
      if (character.code == kInvalid) {
        if (!all && MayBecomeWhole(std::string_view(bytes).substr(at))) break;
        AppendUtf8(kReplacement, text);
      } else {
        text.append(bytes, at, character.length);
      }
      at += character.length;
      state.begun = true;
    }
    bytes.erase(0, at);
  }

  /// Moves a whole run of pending bytes to the text. As in Hugging Face's ByteFallback, either the run is UTF-8 or each
  /// byte becomes U+FFFD.
  static void FlushRun(DecodeState& state, std::string& text) {
    state.begun = state.begun || !state.pending.empty();
    if (IsValidUtf8(state.pending)) {
      text += state.pending;
    } else {
      for (std::size_t i = 0; i < state.pending.size(); ++i) AppendUtf8(kReplacement, text);
    }
    state.pending.clear();
  }

  TokenStrings decoded_;
  std::vector<Shape> shapes_;
  TokenIndex reserved_, others_;  ///< reserved: control, unknown and byte pieces
  SpmNormalizer normalizer_;
  // One of the two, as the model's algorithm says.
  std::optional<SpmBpe> bpe_;
  std::optional<SpmUnigram> unigram_;
  std::array<TokenId, 256> bytes_{};
  TokenId unknown_ = kNoToken;
  bool strips_one_ = false, strips_all_ = false;  ///< removes one space, or all, at the beginning of a text
  bool prefix_every_part_ = true, prefix_marked_ = true;
  bool whole_byte_runs_ = false;
};

}  // namespace

Result<std::shared_ptr<const Tokenizer>> LoadSentencePiece(ByteSpan bytes, std::string fingerprint) {
  return MakeSentencePiece(MR_TRY(ReadSentencePieceModel(bytes)), std::move(fingerprint));
}

Result<std::shared_ptr<const Tokenizer>> MakeSentencePiece(const SentencePieceModel& model, std::string fingerprint) {
  return SentencePieceTokenizer::Make(model, std::move(fingerprint));
}

}  // namespace millrace::tokenizer
