#include "millrace/serve/engine/engine_model.h"

#include <ATen/ATen.h>

#include "millrace/engine/errors.h"
#include "millrace/engine/models/model.h"

namespace millrace::serve {
namespace {

class EngineSequence final : public Sequence {
 public:
  EngineSequence(engine::Model& model, int capacity, int vocab_size)
      : model_(model), vocab_size_(vocab_size), cache_(model.MakeCache(/*rows=*/1, capacity)) {}

  Result<std::span<const float>> Append(std::span<const TokenId> tokens) override {
    if (cache_.length() + static_cast<std::int64_t>(tokens.size()) > cache_.capacity()) {
      return Fail(Code::kInternal, "a sequence of {} tokens cannot take more than it was made for", cache_.capacity());
    }
    return engine::CatchTorch("generating", [&] {
      auto inputs = at::empty({1, static_cast<std::int64_t>(tokens.size())}, at::kLong);
      std::copy(tokens.begin(), tokens.end(), inputs.data_ptr<std::int64_t>());
      logits_ = model_.Logits(inputs, &cache_).cpu().contiguous();
      return std::span<const float>(logits_.data_ptr<float>(), static_cast<std::size_t>(vocab_size_));
    });
  }

 private:
  engine::Model& model_;
  const int vocab_size_;
  engine::KvCache cache_;
  at::Tensor logits_;  ///< [1, 1, vocabulary] float32, behind the span that Append gave
};

class EngineModel final : public LanguageModel {
 public:
  EngineModel(std::unique_ptr<engine::Model> model, int vocab_size) : model_(std::move(model)) {
    int rows = static_cast<int>(model_->config().sizes().vocab_size);
    vocab_size_ = vocab_size > 0 ? std::min(vocab_size, rows) : rows;
  }
  int vocab_size() const override { return vocab_size_; }
  int context_length() const override { return static_cast<int>(model_->config().sizes().max_positions); }
  Result<std::unique_ptr<Sequence>> NewSequence(int capacity) override {
    return engine::CatchTorch("starting a sequence", [&]() -> std::unique_ptr<Sequence> {
      return std::make_unique<EngineSequence>(*model_, capacity, vocab_size_);
    });
  }

 private:
  std::unique_ptr<engine::Model> model_;
  int vocab_size_;
};

}  // namespace

std::unique_ptr<LanguageModel> MakeEngineModel(std::unique_ptr<engine::Model> model, int vocab_size) {
  return std::make_unique<EngineModel>(std::move(model), vocab_size);
}

}  // namespace millrace::serve
