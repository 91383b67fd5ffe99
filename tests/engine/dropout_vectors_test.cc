// Dropout of whole models against transformers: the distribution of what the last block puts out and of the loss, with
// each key of the configuration alone. make_variant_vectors.py wrote the moments of 40,000 draws of transformers; here
// are 2,000 draws, always the same.
//
// Moments of samples are about normal. z is how far a moment is from the expected one, in standard errors.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/engine/vectors.h"

namespace millrace::engine {
namespace {

constexpr double kProbability = 0.3;          // DROPOUT of make_variant_vectors.py
constexpr std::int64_t kTheirDraws = 40'000;  // its DRAWS
constexpr std::int64_t kBlocks = 2;           // of all models in testdata
constexpr std::int64_t kSteps = 4, kRows = 500, kDraws = kSteps * kRows;
// A normal z is beyond 5 once in 1.7 million times. There are about 4,000 z in this test.
constexpr double kLargestZ = 5;

/// A folder in testdata, and the key of a dropout.
struct Dropped {
  std::string folder, key;
};
void PrintTo(const Dropped& dropped, std::ostream* out) { *out << dropped.folder << " " << dropped.key; }

class DropoutVectors : public testing::TestWithParam<Dropped> {
 protected:
  void SetUp() override {
    const auto& [folder, key] = GetParam();
    auto expected = LoadSafetensors(Folder(folder) / "dropout.safetensors");
    ASSERT_TRUE(expected) << expected.error().ToString();
    expected_ = *std::move(expected);
    // The first stage gives what the last block puts out, the second one the losses.
    auto model =
        LoadModel(Folder(folder), at::kFloat, {{key, kProbability}},
                  {{.last = kBlocks, .predicts = false}, {.first = kBlocks, .last = kBlocks, .embeds = false}});
    ASSERT_TRUE(model) << model.error().ToString();
    model_ = *std::move(model);
  }

  at::Tensor Expected(const std::string& moment) const {
    return expected_.at(GetParam().key + "/" + moment).to(at::kDouble);
  }
  /// Returns `rows` times the one row that transformers was given.
  ModelBatch Batch(std::int64_t rows, std::int64_t step, std::int64_t first_sample) const {
    const at::Tensor& inputs = expected_.at("input_ids");
    ModelBatch batch{.inputs = inputs.expand({rows, -1}), .labels = expected_.at("labels").expand({rows, -1})};
    if (expected_.contains("row_labels")) batch.row_labels = expected_.at("row_labels").expand({rows});
    batch.row_loss_weight = 2.5;
    batch.dropout = ops::DropoutRows{.seed = 1,
                                     .step = static_cast<std::uint64_t>(step),
                                     .first_sample = static_cast<std::uint64_t>(first_sample),
                                     .row_length = inputs.size(1)};
    return batch;
  }
  /// Draws `hidden_` [draws, elements] and `losses_` [draws].
  void Draw() {
    const at::NoGradGuard no_grad;
    const std::int64_t elements = Expected("mean").numel();
    hidden_ = at::empty({kDraws, elements}, at::kDouble);
    losses_ = at::empty({kDraws}, at::kDouble);
    for (std::int64_t step = 0; step < kSteps; ++step) {
      const at::Tensor hidden = model_->Forward(0, Batch(kRows, step, 0));
      hidden_.narrow(0, step * kRows, kRows).copy_(hidden.view({kRows, elements}));
      const std::int64_t length = hidden.size(0) / kRows;
      for (std::int64_t row = 0; row < kRows; ++row) {
        losses_[step * kRows + row] =
            model_->Forward(1, Batch(1, step, row), hidden.narrow(0, row * length, length)).to(at::kDouble);
      }
    }
  }

  /// Compares the mean and the variance of each column of `draws` with what transformers has.
  static void ExpectMoments(const at::Tensor& draws, const at::Tensor& mean, const at::Tensor& variance,
                            const at::Tensor& fourth, const std::string& what) {
    ExpectSmallZ(draws.mean(0) - mean, variance, what + ": mean");
    ExpectSmallZ((draws - mean).square().mean(0) - variance, fourth - variance.square(), what + ": variance");
  }
  /// `variance`: that of one draw.
  static void ExpectSmallZ(const at::Tensor& difference, const at::Tensor& variance, const std::string& what) {
    constexpr double kRounding = 1e-5;  // of float32, where nothing is dropped
    const at::Tensor error = at::sqrt(variance * (1.0 / kDraws + 1.0 / kTheirDraws)) + kRounding;
    EXPECT_LE((difference / error).abs().max().item<double>(), kLargestZ) << what;
  }

  Tensors expected_;
  std::unique_ptr<Model> model_;
  at::Tensor hidden_, losses_;
};

TEST_P(DropoutVectors, DrawsAsTransformersDoes) {
  Draw();
  const at::Tensor mean = Expected("mean").view({1, -1}), variance = Expected("variance").view({1, -1});
  ExpectMoments(hidden_, mean, variance, Expected("fourth").view({1, -1}), "hidden states");
  // The mean over the elements finds what is too little in a single one.
  if (const at::Tensor varies = variance > 1e-9; varies.any().item<bool>()) {
    const at::Tensor spread = at::where(varies, (hidden_ - mean).square() / variance, at::ones_like(variance)).mean(1);
    ExpectSmallZ(spread.mean() - 1, spread.var(), "spread of the hidden states");
  }
  const at::Tensor loss = Expected("loss");
  ExpectMoments(losses_, loss[0], loss[1], loss[2], "loss");
}

INSTANTIATE_TEST_SUITE_P(Keys, DropoutVectors,
                         testing::Values(Dropped{"gpt2", "embd_pdrop"}, Dropped{"gpt2", "attn_pdrop"},
                                         Dropped{"gpt2", "resid_pdrop"}, Dropped{"gptj", "embd_pdrop"},
                                         Dropped{"gptj", "attn_pdrop"}, Dropped{"gptj", "resid_pdrop"},
                                         Dropped{"llama3", "attention_dropout"}, Dropped{"phi3", "attention_dropout"},
                                         Dropped{"phi3", "resid_pdrop"}, Dropped{"bert", "hidden_dropout_prob"},
                                         Dropped{"bert", "attention_probs_dropout_prob"},
                                         Dropped{"bert_classes", "hidden_dropout_prob"},
                                         Dropped{"bert_classes", "attention_probs_dropout_prob"},
                                         Dropped{"bert_classes", "classifier_dropout"}),
                         [](const auto& info) { return info.param.folder + "_" + info.param.key; });

}  // namespace
}  // namespace millrace::engine
