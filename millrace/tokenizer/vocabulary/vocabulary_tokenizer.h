// The part that the tokenizers of all formats share.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/tokenizer/tokenizer.h"
#include "millrace/tokenizer/vocabulary/added_tokens.h"
#include "millrace/tokenizer/vocabulary/encode_workspace.h"
#include "millrace/tokenizer/vocabulary/token_strings.h"

namespace millrace::tokenizer {

/// The ids of tokens with a fixed role. kNoToken if the vocabulary has no such token.
struct NamedTokens {
  TokenId bos = kNoToken, eos = kNoToken, unk = kNoToken, pad = kNoToken;
  std::optional<bool> adds_bos = {};  ///< nothing if the file does not say
};

/// A tokenizer with a list of tokens. Finds the added tokens in a text. A subclass encodes the text between them, one
/// segment after another, by the rules of its format.
class VocabularyTokenizer : public Tokenizer {
 public:
  Status Encode(std::string_view text, std::vector<TokenId>& ids) const final {
    return EncodeSome(text, std::string_view::npos, false, ids);
  }
  Status EncodeFirst(std::string_view text, std::size_t count, std::vector<TokenId>& ids) const final {
    return EncodeSome(text, count, false, ids);
  }
  Status EncodeWithSpecials(std::string_view text, std::vector<TokenId>& ids) const final {
    return EncodeSome(text, std::string_view::npos, true, ids);
  }
  /// Decodes one token after another with DecodeNext(). Subclasses override it if they have a faster way.
  Result<std::string> Decode(std::span<const TokenId> ids) const override;
  Result<std::string> Piece(TokenId id) const final {
    MR_TRY(CheckId(id));
    return std::string(strings_[id]);
  }
  int vocab_size() const final { return strings_.size(); }
  TokenId bos() const final { return named_.bos; }
  TokenId eos() const final { return named_.eos; }
  TokenId unk() const final { return named_.unk; }
  TokenId pad() const final { return named_.pad; }
  std::optional<bool> adds_bos() const final { return named_.adds_bos; }
  const std::string& fingerprint() const final { return fingerprint_; }

 protected:
  static constexpr std::size_t kMaxPieceBytes = 4096;  // far above any published vocabulary; bounds work per position

  /// The text between two added tokens.
  struct TextSegment {
    std::string_view text;  ///< not empty
    bool first;             ///< it begins where the whole text begins
    bool specials;          ///< also find the special tokens that the subclass searches itself
  };
  explicit VocabularyTokenizer(std::string fingerprint) : fingerprint_(std::move(fingerprint)) {}

  virtual void EncodeSegment(const TextSegment& segment, EncodeWorkspace& workspace, IdWriter& ids) const = 0;

  /// Errors: kInvalidArgument for an id outside the vocabulary.
  Status CheckId(TokenId id) const { return CheckIds({&id, 1}); }
  Status CheckIds(std::span<const TokenId> ids) const;
  static Status CheckPiece(std::string_view piece);

  TokenStrings strings_;
  NamedTokens named_;
  AddedTokens added_;

 private:
  Status EncodeSome(std::string_view text, std::size_t count, bool specials, std::vector<TokenId>& ids) const;

  std::string fingerprint_;
  mutable WorkspacePool workspaces_;
};

}  // namespace millrace::tokenizer
