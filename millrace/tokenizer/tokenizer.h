// Text to token ids and back, behind one interface.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/bytes.h"
#include "millrace/base/result.h"

namespace millrace::tokenizer {

using TokenId = std::int32_t;
inline constexpr TokenId kNoToken = -1;

/// Where a decoding stands that gets its tokens one by one. Make a fresh one for each text.
struct DecodeState {
  bool begun = false;   ///< something was decoded before: spaces in front of words count
  std::string pending;  ///< what is not certain yet: bytes that may be the beginning of a character, or ids
};

/// Immutable once made; any thread may call any method.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  /// Appends the ids of `text`. Special tokens are never added and never recognised in the text: a document that
  /// contains "<s>" is text, also where the model knows "<s>" as a word. Invalid UTF-8: README.md. Fails only on texts
  /// of 2 GiB and more.
  virtual Status Encode(std::string_view text, std::vector<TokenId>& ids) const = 0;
  /// Appends the first `count` of those ids, or all if there are fewer; may spare the work for the rest.
  virtual Status EncodeFirst(std::string_view text, std::size_t count, std::vector<TokenId>& ids) const {
    std::size_t before = ids.size();
    MR_TRY(Encode(text, ids));
    if (ids.size() - before > count) ids.resize(before + count);
    return {};
  }
  /// As Encode, but special tokens that are spelled out in the text ("<s>", "<|endoftext|>") become their ids, the
  /// longest of several that begin at one place. What stands between them is encoded as texts of their own. For chat
  /// templates; never for text that others wrote.
  virtual Status EncodeWithSpecials(std::string_view text, std::vector<TokenId>& ids) const {
    return Encode(text, ids);
  }

  /// The text of `ids`; special tokens yield nothing. Fails with kInvalidArgument on an id outside the vocabulary.
  virtual Result<std::string> Decode(std::span<const TokenId> ids) const = 0;
  /// Appends what is certain of the text once `id` follows what `state` has seen; StreamDecoder is the way to use it.
  /// Together with DecodeEnd it yields what Decode does. This default suits tokens whose text does not depend on
  /// others.
  virtual Status DecodeNext(DecodeState& state, TokenId id, std::string& text) const;
  /// Appends what waited for more.
  virtual void DecodeEnd(DecodeState& state, std::string& text) const;

  /// The piece as stored in the model ("▁the", "<0x0A>"); of byte-level vocabularies the bytes.
  virtual Result<std::string> Piece(TokenId id) const = 0;
  /// The id of a piece as Piece gives it, special tokens among them; kNoToken when there is none.
  virtual TokenId IdOf(std::string_view piece) const;

  virtual int vocab_size() const = 0;
  virtual TokenId bos() const = 0;  ///< kNoToken when the model has none; likewise the next three
  virtual TokenId eos() const = 0;
  virtual TokenId unk() const = 0;
  virtual TokenId pad() const { return kNoToken; }
  /// Whether texts are to begin with bos(): as the file's post-processor has it; nothing: the file does not say.
  virtual std::optional<bool> adds_bos() const { return std::nullopt; }
  /// "sentencepiece-bpe", "sentencepiece-unigram", "unigram", "byte-bpe", "bpe", "wordpiece", "wordlevel"
  virtual std::string_view kind() const = 0;
  /// crc32c of the model's bytes as 8 hex digits: part of the identity of everything tokenized with it.
  virtual const std::string& fingerprint() const = 0;
};

/// Turns ids that come one by one into text, which never ends within a UTF-8 character; all of it together is what
/// Tokenizer::Decode makes of all ids. One thread at a time; the tokenizer must outlive it.
class StreamDecoder {
 public:
  explicit StreamDecoder(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  /// Appends to `text` what is certain now, which may be nothing. Fails with kInvalidArgument on an id outside the
  /// vocabulary, and goes on as if it had not come.
  Status Add(TokenId id, std::string& text) { return tokenizer_.DecodeNext(state_, id, text); }
  /// Appends the rest: bytes of a character that never became whole. The next Add begins a new text.
  void Finish(std::string& text) {
    tokenizer_.DecodeEnd(state_, text);
    state_ = {};
  }

 private:
  const Tokenizer& tokenizer_;
  DecodeState state_;
};

}  // namespace millrace::tokenizer
