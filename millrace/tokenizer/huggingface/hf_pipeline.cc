#include "millrace/tokenizer/huggingface/hf_pipeline.h"

#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "millrace/tokenizer/huggingface/hf_decoder.h"
#include "millrace/tokenizer/huggingface/hf_model.h"
#include "millrace/tokenizer/unicode/utf8.h"
#include "millrace/tokenizer/vocabulary/token_index.h"

namespace millrace::tokenizer::hf {
namespace {

class Pipeline final : public VocabularyTokenizer {
 public:
  static Result<std::shared_ptr<const Tokenizer>> Make(TokenizerFile file, std::string fingerprint) {
    auto normalizer = HfNormalizer(MR_TRY(ReadNormalizer(Member(file.json, "normalizer"))));
    auto pre_tokenizer = HfPreTokenizer(MR_TRY(ReadPreTokenizer(Member(file.json, "pre_tokenizer"))));
    auto decoder = MR_TRY(TokenDecoder::Read(Member(file.json, "decoder")));
    auto model = MR_TRY(ReadWordModel(file));
    auto made = std::shared_ptr<Pipeline>(new Pipeline(std::move(fingerprint), std::move(normalizer),
                                                       std::move(pre_tokenizer), std::move(model), std::move(decoder)));
    MR_TRY(made->AddTokens(file));
    MR_TRY(made->FindAdded(std::move(file.added)));
    made->kind_ = ModelType(file.json) == "Unigram"     ? "unigram"
                  : ModelType(file.json) == "BPE"       ? "bpe"
                  : ModelType(file.json) == "WordLevel" ? "wordlevel"
                                                        : "wordpiece";
    made->named_ = file.named;
    return made;
  }

  Result<std::string> Decode(std::span<const TokenId> ids) const override {
    MR_TRY(CheckIds(ids));
    if (!decoder_.goes_by_token()) return decoder_.Decode(TextsOf(ids));
    std::string text;
    bool begun = false;
    for (const TokenId id : ids) {
      if (!IsHidden(id)) text += std::exchange(begun, true) ? later_[id] : first_[id];
    }
    return text;
  }

  Status DecodeNext(DecodeState& state, TokenId id, std::string& text) const override {
    MR_TRY(CheckId(id));
    if (IsHidden(id)) return {};
    if (!decoder_.goes_by_token()) {
      // The text of a token depends on all other tokens, so no text is certain before the end.
      state.pending.append(AsText(std::as_bytes(std::span(&id, 1))));
      return {};
    }
    state.pending += std::exchange(state.begun, true) ? later_[id] : first_[id];
    const std::size_t certain = state.pending.size() - UnfinishedEnd(state.pending);
    text.append(state.pending, 0, certain);
    state.pending.erase(0, certain);
    return {};
  }

  void DecodeEnd(DecodeState& state, std::string& text) const override {
    if (decoder_.goes_by_token()) {
      text += state.pending;
      return;
    }
    std::vector<TokenId> ids(state.pending.size() / sizeof(TokenId));
    if (!ids.empty()) std::memcpy(ids.data(), state.pending.data(), ids.size() * sizeof(TokenId));
    text += decoder_.Decode(TextsOf(ids));
  }

  TokenId IdOf(std::string_view piece) const override { return index_.Find(piece); }
  std::string_view kind() const override { return kind_; }

 protected:
  void EncodeSegment(const TextSegment& segment, EncodeWorkspace& workspace, IdWriter& ids) const override {
    std::string normalized = std::move(workspace.text);
    std::size_t head = 0;
    if (segment.first && pre_tokenizer_.asks_for_head()) {
      head = normalizer_.NormalizeFirst(segment.text, normalized);
    } else {
      normalizer_.Normalize(segment.text, normalized);
    }
    auto word = [&](HfTextSlice one) {
      EncodeWord(one.text, one.text.data() + one.text.size(), workspace, ids,
                 [&](std::string_view unseen) { model_->Encode(unseen, workspace, ids); });
      return !ids.full();
    };
    const HfTextSlice whole{normalized, head};
    auto between = [&](std::string_view text, bool) {
      const auto begin = static_cast<std::size_t>(text.data() - normalized.data());
      pre_tokenizer_.ForEachWord(whole.Slice(begin, begin + text.size()), HfTextSliceVisitor(word));
      return !ids.full();
    };
    auto token = [&](TokenId id) {
      ids.Append(id);
      return !ids.full();
    };
    added_to_normalized_.ForEach(normalized, segment.specials, between, token);
    workspace.text = std::move(normalized);
  }

 private:
  Pipeline(std::string fingerprint, HfNormalizer normalizer, HfPreTokenizer pre_tokenizer,
           std::unique_ptr<const WordModel> model, TokenDecoder decoder)
      : VocabularyTokenizer(std::move(fingerprint)),
        normalizer_(std::move(normalizer)),
        pre_tokenizer_(std::move(pre_tokenizer)),
        model_(std::move(model)),
        decoder_(std::move(decoder)) {}

  std::string Normalized(std::string_view text) const {
    std::string normalized;
    normalizer_.Normalize(text, normalized);
    return normalized;
  }

  Status AddTokens(const TokenizerFile& file) {
    std::vector<std::string> tokens = file.tokens, decoded = file.tokens;
    hidden_.resize(tokens.size());
    for (const AddedToken& one : file.added) {
      const auto at = static_cast<std::size_t>(one.id);
      if (at >= tokens.size()) {
        tokens.resize(at + 1);
        decoded.resize(at + 1);
        hidden_.resize(at + 1);
      }
      tokens[at] = one.text;
      decoded[at] = one.normalized ? Normalized(one.text) : one.text;
      hidden_[at] = one.special;
    }
    for (std::size_t id = 0; id < tokens.size(); ++id) {
      MR_TRY(CheckPiece(tokens[id]));
      strings_.Add(tokens[id]);
      decoded_.Add(decoded[id]);
      if (decoder_.goes_by_token()) {
        first_.Add(decoder_.DecodeOne(decoded[id], true));
        later_.Add(decoder_.DecodeOne(decoded[id], false));
      }
      if (tokens[id].empty()) hidden_[id] = true;
    }
    index_ = TokenIndex(strings_, tokens.size());
    for (TokenId id = 0; id < strings_.size(); ++id) {
      if (!strings_[id].empty() && !index_.Insert(id)) {
        return Fail(Code::kUnsupported, "the tokenizer's vocabulary has the token \"{}\" twice, which is not supported",
                    strings_[id]);
      }
    }
    return {};
  }

  Status FindAdded(std::vector<AddedToken> tokens) {
    auto divided = MR_TRY(DivideTokens(std::move(tokens), [this](std::string_view text) { return Normalized(text); }));
    added_ = std::move(divided.raw);
    added_to_normalized_ = std::move(divided.normalized);
    return {};
  }

  bool IsHidden(TokenId id) const { return hidden_[static_cast<std::size_t>(id)]; }

  std::vector<std::string> TextsOf(std::span<const TokenId> ids) const {
    std::vector<std::string> texts;
    for (const TokenId id : ids) {
      if (!IsHidden(id)) texts.emplace_back(decoded_[id]);
    }
    return texts;
  }

  const HfNormalizer normalizer_;
  const HfPreTokenizer pre_tokenizer_;
  const std::unique_ptr<const WordModel> model_;
  const TokenDecoder decoder_;
  AddedTokens added_to_normalized_;
  TokenIndex index_;
  TokenStrings decoded_;        ///< the tokens as the decoder gets them
  TokenStrings first_, later_;  ///< their text at the beginning and later, if the decoder goes by token
  std::vector<bool> hidden_;    ///< special tokens and unused ids, which decode to nothing
  std::string_view kind_;
};

}  // namespace

Result<std::shared_ptr<const Tokenizer>> MakePipeline(TokenizerFile file, std::string fingerprint) {
  return Pipeline::Make(std::move(file), std::move(fingerprint));
}

}  // namespace millrace::tokenizer::hf
