// Decoders against transformers where documents share rows and where padding fills rows: logits, the loss of every
// token and every gradient. make_variant_vectors.py wrote what transformers makes of them.
#include <gtest/gtest.h>

#include <span>

#include "tests/engine/vectors.h"

namespace millrace::engine {
namespace {

class DocumentVectors : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    auto model = LoadModel(Folder(GetParam()), at::kFloat);
    ASSERT_TRUE(model) << model.error().ToString();
    model_ = *std::move(model);
    auto expected = LoadSafetensors(Folder(GetParam()) / "documents.safetensors");
    ASSERT_TRUE(expected) << expected.error().ToString();
    expected_ = *std::move(expected);
  }

  const at::Tensor& Expected(const std::string& name) const { return expected_.at(name); }
  std::span<const std::int32_t> Bounds(const std::string& kind) const {
    const at::Tensor& bounds = Expected(kind + "/cu_seqlens");
    return {bounds.data_ptr<std::int32_t>(), static_cast<std::size_t>(bounds.numel())};
  }
  /// `kind`: "packed" or "padded".
  ModelBatch Batch(const std::string& kind) const {
    return {.inputs = Expected(kind + "/input_ids"), .labels = Expected(kind + "/labels"), .documents = Bounds(kind)};
  }

  std::unique_ptr<Model> model_;
  Tensors expected_;
};

TEST_P(DocumentVectors, APackedDocumentIsPredictedAsAlone) {
  const at::Tensor inputs = Expected("packed/input_ids").view({1, -1});
  const auto bounds = Bounds("packed");
  std::vector<at::Tensor> logits;
  for (std::size_t i = 0; i + 1 < bounds.size(); ++i) {
    logits.push_back(model_->Logits(inputs.slice(1, bounds[i], bounds[i + 1])));
  }
  const at::Tensor& want = Expected("packed/logits");
  ExpectClose(at::cat(logits, 1).view(want.sizes()), want, kFloatTolerance, "logits");
}

TEST_P(DocumentVectors, PaddingChangesNoPrediction) {
  const at::Tensor counts = (Expected("padded/labels") != ops::kIgnoreLabel).unsqueeze(2);
  ExpectClose(model_->Logits(Expected("padded/input_ids")) * counts, Expected("padded/logits"), kFloatTolerance,
              "logits");
}

TEST_P(DocumentVectors, EveryTokenHasTheLossOfTransformers) {
  const at::NoGradGuard no_grad;
  for (const std::string kind : {"packed", "padded"}) {
    ModelBatch batch = Batch(kind);
    const at::Tensor labels = batch.labels;
    const at::Tensor losses = at::zeros(labels.numel());
    for (std::int64_t token = 0; token < labels.numel(); ++token) {
      batch.labels = at::full_like(labels, ops::kIgnoreLabel);
      batch.labels.view(-1)[token] = labels.view(-1)[token];
      losses[token] = model_->LossSum(batch);
    }
    ExpectClose(losses.view(labels.sizes()), Expected(kind + "/token_losses"), kFloatTolerance, kind);
  }
}

TEST_P(DocumentVectors, LearnsAsTransformersDoes) {
  model_->buffer().EnableGradients();
  for (const std::string kind : {"packed", "padded"}) {
    const at::Tensor loss = model_->LossSum(Batch(kind));
    ExpectClose(loss.detach(), Expected(kind + "/token_losses").sum(), kFloatTolerance, kind);
    loss.backward();
  }
  const auto tolerances = Tolerances::Load(Folder(GetParam()), at::kFloat, kFloatTolerance);
  ASSERT_TRUE(tolerances) << tolerances.error().ToString();
  ExpectGradients(*model_, expected_, *tolerances);
}

INSTANTIATE_TEST_SUITE_P(Families, DocumentVectors,
                         testing::Values("gpt2", "gptj", "mistral", "qwen2", "qwen3", "qwen3_window", "olmo2",
                                         "smollm3", "gemma2", "gemma3"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace millrace::engine
