#include "millrace/serve/engine/engine_model.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "millrace/base/text.h"
#include "millrace/engine/errors.h"
#include "millrace/engine/models/model.h"
#include "millrace/serve/engine/engine_adapter.h"
#include "millrace/serve/engine/pooling.h"

namespace millrace::serve {
namespace {

/// Tokens of a block: few enough that texts waste little of their last block and that short beginnings are shared. On a
/// CPU, these are two registers of keys; on a GPU, the keys that a block of threads takes at a time.
constexpr std::int64_t kBlockTokens = 32;

/// Texts of full length that fit the cache if nobody says how large it is.
constexpr std::int64_t kDefaultContexts = 8;

class EngineModel final : public LanguageModel {
 public:
  EngineModel(std::unique_ptr<engine::Model> model, int vocab_size, CacheSize size, engine::KvNumbers numbers,
              Pooling pooling)
      : model_(std::move(model)), size_(size), pooling_(std::move(pooling)) {
    // Not std::make_unique: a cache cannot be moved.
    if (size.blocks > 0) cache_.reset(new engine::KvCache(model_->MakeCache(size.blocks, size.block_tokens, numbers)));
    const int rows = static_cast<int>(model_->config().sizes().vocab_size);
    vocab_size_ = vocab_size > 0 ? std::min(vocab_size, rows) : rows;
  }
  int vocab_size() const override { return vocab_size_; }
  int context_length() const override { return static_cast<int>(model_->config().sizes().max_positions); }
  CacheSize cache() const override { return size_; }

  Result<std::span<const float>> Step(std::span<const StepPart> parts) override {
    if (!cache_) return Fail(Code::kUnsupported, "this model makes embeddings and no texts");
    std::vector<engine::SequencePart> all;
    for (const StepPart& part : parts) {
      const auto* adapter = static_cast<const EngineAdapter*>(part.adapter);
      all.push_back({.tokens = part.tokens,
                     .past = part.past,
                     .blocks = part.blocks,
                     .logits = part.logits,
                     .adapter = adapter != nullptr ? &adapter->weights() : nullptr});
    }
    return engine::CatchTorch("generating", [&]() -> std::span<const float> {
      const at::Tensor logits = model_->Step(all, *cache_);
      if (!logits.defined()) return {};
      // The host waits once a step: here, for the logits.
      logits_ = logits.narrow(1, 0, vocab_size_).cpu().contiguous();
      return {logits_.data_ptr<float>(), static_cast<std::size_t>(logits_.numel())};
    });
  }

  Result<std::vector<std::vector<float>>> Embed(std::span<const std::span<const TokenId>> texts) override {
    return engine::CatchTorch("embedding", [&] {
      const at::Tensor hidden = model_->HiddenStates(texts);
      std::vector<std::vector<float>> vectors;
      std::int64_t begin = 0;
      for (const auto& text : texts) {
        const auto tokens = static_cast<std::int64_t>(text.size());
        const at::Tensor vector = Pool(pooling_, hidden.narrow(0, begin, tokens));
        const auto* first = vector.data_ptr<float>();
        vectors.emplace_back(first, first + vector.numel());
        begin += tokens;
      }
      return vectors;
    });
  }

 private:
  const std::unique_ptr<engine::Model> model_;
  const CacheSize size_;
  int vocab_size_ = 0;
  const Pooling pooling_;
  std::unique_ptr<engine::KvCache> cache_;  ///< null if the model does not generate
  at::Tensor logits_;                       ///< float32 [parts, vocabulary], behind the span that Step gave
};

}  // namespace

Result<std::unique_ptr<LanguageModel>> MakeEngineModel(std::unique_ptr<engine::Model> model, int vocab_size,
                                                       std::uint64_t cache_bytes, bool int8_cache, Pooling pooling) {
  if (!model->config().generates()) {
    return std::make_unique<EngineModel>(std::move(model), vocab_size, CacheSize{.blocks = 0, .block_tokens = 1},
                                         engine::KvNumbers::kComputed, std::move(pooling));
  }
  const at::ScalarType type = model->buffer().dtype();
  if (int8_cache && (!model->buffer().device().is_cpu() || (type != at::kFloat && type != at::kBFloat16))) {
    return Fail(Code::kUnsupported, "a KV cache in int8 needs a CPU, and f32 or bf16; leave --kv-cache-dtype out");
  }
  const auto numbers = int8_cache ? engine::KvNumbers::kInt8 : engine::KvNumbers::kComputed;
  const std::int64_t context = model->config().sizes().max_positions;
  const std::int64_t block_bytes = kBlockTokens * model->CacheBytesPerToken(numbers);
  const std::int64_t in_context = (context + kBlockTokens - 1) / kBlockTokens;
  std::int64_t blocks = kDefaultContexts * in_context;
  if (cache_bytes > 0) {
    constexpr std::int64_t kMaxBlocks = 1 << 30;  // sizes are ints
    blocks = std::min(static_cast<std::int64_t>(cache_bytes) / block_bytes, kMaxBlocks / kBlockTokens);
  }
  if (blocks < 1) {
    return Fail(Code::kInvalidArgument,
                "a KV cache of {} is too small: a block of {} tokens has {}; give more with --kv-cache",
                FormatBytes(cache_bytes), kBlockTokens, FormatBytes(static_cast<std::uint64_t>(block_bytes)));
  }
  const CacheSize size{.blocks = static_cast<int>(blocks), .block_tokens = static_cast<int>(kBlockTokens)};
  return engine::CatchTorch("allocating the KV cache", [&]() -> std::unique_ptr<LanguageModel> {
    return std::make_unique<EngineModel>(std::move(model), vocab_size, size, numbers, std::move(pooling));
  });
}

}  // namespace millrace::serve
