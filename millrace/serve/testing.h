// A tokenizer of bytes and a model that says what it is told, for tests.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "millrace/serve/language_model.h"
#include "millrace/serve/text_stream.h"

namespace millrace::serve {

/// Token i < 256 is the byte i; 256 begins and 257 ends a text. Decodes as SentencePiece's byte fallback does: bytes
/// that are no character become U+FFFD each.
class ByteTokenizer final : public tokenizer::Tokenizer {
 public:
  static constexpr TokenId kBos = 256, kEos = 257;
  Status Encode(std::string_view text, std::vector<TokenId>& ids) const override {
    for (unsigned char byte : text) ids.push_back(byte);
    return {};
  }
  Result<std::string> Decode(std::span<const TokenId> ids) const override {
    std::string bytes;
    for (TokenId id : ids) {
      if (id < 0 || id >= vocab_size()) return Fail(Code::kInvalidArgument, "no token {}", id);
      if (id < 256) bytes.push_back(static_cast<char>(id));
    }
    return ReplaceInvalidUtf8(bytes);
  }
  Result<std::string> Piece(TokenId id) const override { return std::to_string(id); }
  int vocab_size() const override { return 258; }
  TokenId bos() const override { return kBos; }
  TokenId eos() const override { return kEos; }
  TokenId unk() const override { return tokenizer::kNoToken; }
  std::string_view kind() const override { return "bytes"; }
  const std::string& fingerprint() const override { return fingerprint_; }

 private:
  std::string fingerprint_ = "00000000";
};

inline std::vector<TokenId> Bytes(std::string_view text) {
  std::vector<TokenId> ids;
  (void)ByteTokenizer().Encode(text, ids);
  return ids;
}

/// After all tokens so far, `next` says which one follows: by far the likeliest.
class ScriptedModel final : public LanguageModel {
 public:
  using Next = std::function<TokenId(std::span<const TokenId>)>;
  explicit ScriptedModel(Next next, int context_length = 1000) : next_(std::move(next)), context_(context_length) {}

  /// What follows the last ">" of the prompt is `text`, and then the end.
  static Next Says(std::string text) {
    return [text](std::span<const TokenId> tokens) -> TokenId {
      auto start = std::find(tokens.rbegin(), tokens.rend(), TokenId{'>'});
      auto said = static_cast<std::size_t>(start - tokens.rbegin());
      return said < text.size() ? static_cast<unsigned char>(text[said]) : ByteTokenizer::kEos;
    };
  }

  int vocab_size() const override { return 258; }
  int context_length() const override { return context_; }
  Result<std::unique_ptr<Sequence>> NewSequence(int capacity) override {
    return std::make_unique<ScriptedSequence>(*this, capacity);
  }
  std::function<void(std::span<const TokenId>)> on_append;  ///< may block, to hold the model up

 private:
  class ScriptedSequence final : public Sequence {
   public:
    ScriptedSequence(ScriptedModel& model, int capacity) : model_(model), capacity_(capacity), logits_(258) {}
    Result<std::span<const float>> Append(std::span<const TokenId> tokens) override {
      tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
      if (static_cast<int>(tokens_.size()) > capacity_) return Fail(Code::kInternal, "more tokens than announced");
      if (model_.on_append) model_.on_append(tokens);
      std::fill(logits_.begin(), logits_.end(), 0.0f);
      logits_[static_cast<std::size_t>(model_.next_(tokens_))] = 100;
      return std::span<const float>(logits_);
    }

   private:
    ScriptedModel& model_;
    const int capacity_;
    std::vector<TokenId> tokens_;
    std::vector<float> logits_;
  };

  Next next_;
  const int context_;
};

}  // namespace millrace::serve
