// What all kinds of tokenizers have and do alike.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/tokenizer/tokenizer.h"
#include "millrace/tokenizer/vocabulary/added_tokens.h"
#include "millrace/tokenizer/vocabulary/pieces.h"
#include "millrace/tokenizer/vocabulary/scratch.h"

namespace millrace::tokenizer {

/// Tokens with a meaning of their own; kNoToken for those that there are not.
struct NamedTokens {
  TokenId bos = kNoToken, eos = kNoToken, unk = kNoToken, pad = kNoToken;
  std::optional<bool> adds_bos = {};  ///< nothing: not said
};

/// A tokenizer of listed pieces, of which some are found in texts as they are. What is between those, a kind of
/// tokenizer encodes by its own rules, one part after another.
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
  /// One token after another, for kinds that have a DecodeNext of their own and no quicker way.
  Result<std::string> Decode(std::span<const TokenId> ids) const override;
  Result<std::string> Piece(TokenId id) const final {
    MR_TRY(CheckId(id));
    return std::string(pieces_[id]);
  }
  int vocab_size() const final { return pieces_.size(); }
  TokenId bos() const final { return named_.bos; }
  TokenId eos() const final { return named_.eos; }
  TokenId unk() const final { return named_.unk; }
  TokenId pad() const final { return named_.pad; }
  std::optional<bool> adds_bos() const final { return named_.adds_bos; }
  const std::string& fingerprint() const final { return fingerprint_; }

 protected:
  static constexpr std::size_t kMaxPieceBytes = 4096;

  /// A text between added tokens.
  struct Part {
    std::string_view text;  ///< not empty
    bool first;             ///< it begins where the whole text does
    bool specials;          ///< special tokens are wanted, if the kind finds some of its own
  };
  explicit VocabularyTokenizer(std::string fingerprint) : fingerprint_(std::move(fingerprint)) {}

  virtual void EncodePart(const Part& part, Scratch& scratch, IdWriter& ids) const = 0;

  /// kInvalidArgument for ids that there are not.
  Status CheckId(TokenId id) const { return CheckIds({&id, 1}); }
  Status CheckIds(std::span<const TokenId> ids) const;
  static Status CheckPiece(std::string_view piece);

  Pieces pieces_;
  NamedTokens named_;
  AddedTokens added_;

 private:
  Status EncodeSome(std::string_view text, std::size_t count, bool specials, std::vector<TokenId>& ids) const;

  std::string fingerprint_;
  mutable ScratchPool scratches_;
};

}  // namespace millrace::tokenizer
