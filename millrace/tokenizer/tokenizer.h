// Text to token ids and back, behind one interface.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/bytes.h"
#include "millrace/base/error.h"

namespace millrace::tokenizer {

/// The number of a token in a vocabulary.
using TokenId = std::int32_t;
/// In the place of an id: there is no such token.
inline constexpr TokenId kNoToken = -1;

/// The templates, in Jinja, by which a model writes conversations, as the files beside its tokenizer have them.
struct ChatTemplates {
  std::string text;       ///< of conversations
  std::string tool_text;  ///< of conversations with tools; empty: `text`
  /// The texts of the special tokens that a template names: "bos_token", "eos_token" and so on.
  std::map<std::string, std::string> tokens;
};

/// The state of a decoding that gets its tokens one by one. Make a new state for each text.
struct DecodeState {
  bool begun = false;   ///< some text was decoded before: now spaces in front of words count
  std::string pending;  ///< bytes that may begin a character, or ids whose text depends on the ids that follow
};

/// Turns text into the ids of tokens, and ids into text. Immutable; any thread may call any method.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  /// Appends the ids of `text`. Never adds special tokens and never recognises them in the text: "<s>" in a document is
  /// text, even if the model knows "<s>" as a word. README.md says what becomes of invalid UTF-8.
  /// Errors: kInvalidArgument on texts of 2 GiB and more.
  virtual Status Encode(std::string_view text, std::vector<TokenId>& ids) const = 0;
  /// Appends the first `count` ids that Encode() would append, or all if there are fewer. May save the work for the
  /// rest.
  virtual Status EncodeFirst(std::string_view text, std::size_t count, std::vector<TokenId>& ids) const;
  /// As Encode(), but recognises special tokens that the text spells out ("<s>", "<|endoftext|>"). If several begin at
  /// one position, the longest counts. The text between two of them is encoded as a text of its own. Use it for chat
  /// templates, and never for text that others wrote.
  virtual Status EncodeWithSpecials(std::string_view text, std::vector<TokenId>& ids) const {
    return Encode(text, ids);
  }

  /// Returns the text of `ids`, without special tokens. Errors: kInvalidArgument on an id outside the vocabulary.
  virtual Result<std::string> Decode(std::span<const TokenId> ids) const = 0;
  /// Appends the text that is certain once `id` follows the ids before. Callers use StreamDecoder. The texts of all
  /// calls and of DecodeEnd() together are the text of Decode(). This default suits vocabularies in which the text of
  /// a token does not depend on other tokens. Errors: those of Decode().
  virtual Status DecodeNext(DecodeState& state, TokenId id, std::string& text) const;
  /// Appends the text that waited for more ids.
  virtual void DecodeEnd(DecodeState& state, std::string& text) const;

  /// Returns the token as the model stores it ("▁the", "<0x0A>"), or its bytes in a byte-level vocabulary.
  /// Errors: kInvalidArgument on an id outside the vocabulary.
  virtual Result<std::string> Piece(TokenId id) const = 0;
  /// Returns the id of a token that is written as Piece() returns it, also of special tokens. kNoToken if there is
  /// none.
  virtual TokenId IdOf(std::string_view piece) const;

  virtual int vocab_size() const = 0;               ///< ids are less than this
  virtual TokenId bos() const = 0;                  ///< begins a text; kNoToken if the model has none
  virtual TokenId eos() const = 0;                  ///< ends a text; kNoToken if the model has none
  virtual TokenId unk() const = 0;                  ///< stands for unknown text; kNoToken if the model has none
  virtual TokenId pad() const { return kNoToken; }  ///< fills rows; kNoToken if the model has none
  /// Returns the token that documents of training begin with: bos(), unless the model's files only declare that one.
  /// kNoToken if they begin with none.
  virtual TokenId text_begin() const { return bos(); }
  /// Returns whether the file's post-processor puts bos() in front of texts. Nothing if the file does not say.
  virtual std::optional<bool> adds_bos() const { return std::nullopt; }
  /// Returns the templates of conversations that came with the tokenizer. Null if there are none.
  virtual const ChatTemplates* chat_templates() const { return nullptr; }
  /// The algorithm, one of "sentencepiece-bpe", "sentencepiece-unigram", "unigram", "byte-bpe", "bpe", "wordpiece",
  /// "wordlevel"
  virtual std::string_view kind() const = 0;
  /// The crc32c of the model's bytes as 8 hex digits. Everything that was tokenized with the model records it.
  virtual const std::string& fingerprint() const = 0;
  /// fingerprint() and, if files beside the model declare them, text_begin() and eos(): all that the ids of documents
  /// depend on.
  virtual const std::string& text_fingerprint() const { return fingerprint(); }
};

/// Turns ids that come one by one into text. No part of the text ends within a UTF-8 character. All parts together are
/// the text of Tokenizer::Decode(). One thread at a time. The tokenizer must outlive the decoder.
class StreamDecoder {
 public:
  /// Begins a text. Borrows `tokenizer`.
  explicit StreamDecoder(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  /// Appends to `text` what is certain now, which may be nothing.
  /// Errors: kInvalidArgument on an id outside the vocabulary. The decoder ignores such an id.
  Status Add(TokenId id, std::string& text) { return tokenizer_.DecodeNext(state_, id, text); }
  /// Appends the rest, such as the bytes of a character that stayed incomplete. The next Add() begins a new text.
  void Finish(std::string& text) {
    tokenizer_.DecodeEnd(state_, text);
    state_ = {};
  }

 private:
  const Tokenizer& tokenizer_;
  DecodeState state_;
};

}  // namespace millrace::tokenizer
