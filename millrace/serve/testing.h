// A tokenizer of bytes, and a model whose tokens a test scripts.
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
class ByteTokenizer : public tokenizer::Tokenizer {
 public:
  static constexpr TokenId kBos = 256, kEos = 257;
  Status Encode(std::string_view text, std::vector<TokenId>& ids) const override {
    for (unsigned char byte : text) ids.push_back(byte);
    return {};
  }
  Result<std::string> Decode(std::span<const TokenId> ids) const override {
    std::string bytes;
    for (TokenId id : ids) {
      if (id < 0 || id >= vocab_size())
        return Fail(Code::kInvalidArgument, "no token {}; expected one below {}", id, vocab_size());
      if (id < 256) bytes.push_back(static_cast<char>(id));
    }
    return ReplaceInvalidUtf8(bytes);
  }
  Result<std::string> Piece(TokenId id) const override {
    return id < 256 ? std::string(1, static_cast<char>(id)) : std::string(id == kBos ? "<s>" : "</s>");
  }
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

/// After all tokens so far, `next` says which one follows: by far the likeliest. Its cache has the tokens themselves,
/// and whose they are: so a text is wrong if its blocks are, and a step fails on blocks of another adapter.
class ScriptedModel final : public LanguageModel {
 public:
  using Next = std::function<TokenId(std::span<const TokenId>)>;
  explicit ScriptedModel(Next next, int context_length = 1000,
                         CacheSize cache = {.blocks = 1 << 13, .block_tokens = 16})
      : next_(std::move(next)), context_(context_length), size_(cache) {
    cached_.resize(static_cast<std::size_t>(size_.tokens()));
  }

  /// Returns a function that gives `text` behind the last ">" of the prompt, and then the end.
  static Next Says(std::string text) {
    return [text](std::span<const TokenId> tokens) -> TokenId {
      auto start = std::find(tokens.rbegin(), tokens.rend(), TokenId{'>'});
      auto said = static_cast<std::size_t>(start - tokens.rbegin());
      return said < text.size() ? static_cast<unsigned char>(text[said]) : ByteTokenizer::kEos;
    };
  }

  int vocab_size() const override { return 258; }
  int context_length() const override { return context_; }
  CacheSize cache() const override { return size_; }
  Result<std::span<const float>> Step(std::span<const StepPart> parts) override {
    if (on_step) MR_TRY(on_step(parts));
    logits_.clear();
    for (const StepPart& part : parts) {
      if (on_append) on_append(part.tokens);
      std::vector<TokenId> text;
      for (std::size_t i = 0; i < static_cast<std::size_t>(part.past) + part.tokens.size(); ++i) {
        const auto in_block = static_cast<std::size_t>(size_.block_tokens);
        if (i / in_block >= part.blocks.size()) return Fail(Code::kInternal, "more tokens than the blocks hold");
        Cached& cached = cached_[static_cast<std::size_t>(part.blocks[i / in_block]) * in_block + i % in_block];
        const std::uint64_t adapter = part.adapter != nullptr ? part.adapter->id() : 0;
        if (i >= static_cast<std::size_t>(part.past)) {
          cached = {part.tokens[i - static_cast<std::size_t>(part.past)], adapter};
        }
        if (cached.adapter != adapter) return Fail(Code::kInternal, "a block of another adapter");
        text.push_back(cached.token);
      }
      for (std::size_t left = static_cast<std::size_t>(part.logits); left > 0; --left) {
        logits_.resize(logits_.size() + 258);
        const auto so_far = std::span(text).first(text.size() - left + 1);
        const TokenId next = part.adapter != nullptr ? next_of_adapter(*part.adapter, so_far) : next_(so_far);
        logits_[logits_.size() - 258 + static_cast<std::size_t>(next)] = 100;
      }
    }
    return std::span<const float>(logits_);
  }
  /// A text's vector has its first token, its last one, and their number.
  Result<std::vector<std::vector<float>>> Embed(std::span<const std::span<const TokenId>> texts) override {
    if (on_embed) MR_TRY(on_embed(texts));
    std::vector<std::vector<float>> vectors;
    for (const auto& text : texts) {
      vectors.push_back(
          {static_cast<float>(text.front()), static_cast<float>(text.back()), static_cast<float>(text.size())});
    }
    return vectors;
  }
  std::function<Status(std::span<const std::span<const TokenId>>)> on_embed;  ///< may fail the call
  std::function<TokenId(const Adapter&, std::span<const TokenId>)> next_of_adapter;
  std::function<void(std::span<const TokenId>)> on_append;   ///< the tokens of a part; may block
  std::function<Status(std::span<const StepPart>)> on_step;  ///< may fail the step

 private:
  struct Cached {
    TokenId token = tokenizer::kNoToken;
    std::uint64_t adapter = 0;  ///< its id; 0: the model itself
  };
  Next next_;
  const int context_;
  const CacheSize size_;
  std::vector<Cached> cached_;  ///< by block
  std::vector<float> logits_;
};

}  // namespace millrace::serve
