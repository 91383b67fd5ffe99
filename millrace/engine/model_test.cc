#include "millrace/engine/model.h"

#include <gtest/gtest.h>

#include "millrace/engine/optim/adamw.h"

namespace millrace::engine {
namespace {

ModelConfig Tiny(bool tied = false) {
  return {.vocab_size = 97,
          .hidden_size = 32,
          .intermediate_size = 48,
          .num_layers = 2,
          .num_heads = 4,
          .num_kv_heads = 2,
          .max_positions = 64,
          .tie_word_embeddings = tied};
}

at::Tensor Ids(at::IntArrayRef shape, std::uint64_t seed) {
  return at::randint(97, shape, at::detail::createCPUGenerator(seed), at::kLong);
}

TEST(ModelConfig, SurvivesItsJson) {
  ModelConfig config = Tiny(true);
  config.rope_theta = 500000;
  const Result<ModelConfig> again = ModelConfig::FromJson(config.ToJson(), "config.json");
  ASSERT_TRUE(again) << again.error().ToString();
  EXPECT_EQ(DumpJson(again->ToJson()), DumpJson(config.ToJson()));
}

TEST(ModelConfig, RefusesWhatItWouldGetWrong) {
  const auto code = [](std::string_view key, Json value) {
    Json json = Tiny().ToJson();
    json[std::string(key)] = std::move(value);
    const Result<ModelConfig> config = ModelConfig::FromJson(json, "config.json");
    return config ? "ok" : std::string(CodeName(config.error().code()));
  };
  EXPECT_EQ(code("model_type", "gpt2"), "unsupported");
  EXPECT_EQ(code("rope_scaling", Json{{"rope_type", "llama3"}}), "unsupported");
  EXPECT_EQ(code("rope_scaling", nullptr), "ok");
  EXPECT_EQ(code("attention_bias", true), "unsupported");
  EXPECT_EQ(code("hidden_act", "gelu"), "unsupported");
  EXPECT_EQ(code("hidden_size", -1), "invalid_argument");
  EXPECT_EQ(code("num_key_value_heads", 3), "invalid_argument");
  EXPECT_EQ(code("vocab_size", 1LL << 40), "invalid_argument");
  EXPECT_EQ(code("head_dim", 7), "invalid_argument");
}

TEST(ModelConfig, CountsParameters) {
  for (const bool tied : {false, true}) {
    auto model = MakeModel(Tiny(tied), at::kFloat, at::kCPU, 1).value();
    std::int64_t elements = 0;
    for (const NamedParameter& p : model->Parameters()) elements += p.elements();
    EXPECT_EQ(elements, Tiny(tied).ParameterCount());
  }
}

TEST(Model, WeightsDependOnTheSeedAlone) {
  auto a = MakeModel(Tiny(), at::kFloat, at::kCPU, 1).value(), b = MakeModel(Tiny(), at::kFloat, at::kCPU, 1).value();
  auto c = MakeModel(Tiny(), at::kFloat, at::kCPU, 2).value();
  EXPECT_TRUE(a->buffer().values().equal(b->buffer().values()));
  EXPECT_FALSE(a->buffer().values().equal(c->buffer().values()));
  const at::Tensor embedding = a->Parameters()[0].tensor;
  EXPECT_NEAR(embedding.mean().item<double>(), 0, 0.002);
  EXPECT_NEAR(embedding.std().item<double>(), 0.02, 0.002);
}

class ModelTypes : public testing::TestWithParam<at::ScalarType> {};

TEST_P(ModelTypes, GenerationWithACacheEqualsTheWholeForward) {
  auto model = MakeModel(Tiny(), GetParam(), at::kCPU, 3).value();
  const at::Tensor ids = Ids({2, 20}, 4);
  const at::Tensor whole = model->Logits(ids);
  KvCache cache(Tiny(), 2, 20, GetParam(), at::kCPU);
  std::int64_t seen = 0;
  for (const std::int64_t count : {5, 1, 1, 6, 1, 6}) {
    const at::Tensor logits = model->Logits(ids.narrow(1, seen, count), &cache);
    seen += count;
    EXPECT_EQ(cache.length(), seen);
    const at::Tensor want = whole.narrow(1, seen - 1, 1);
    const double tolerance = GetParam() == at::kFloat ? 1e-5 : 2e-2;
    EXPECT_LE((logits - want).abs().max().item<double>(), tolerance * want.abs().max().item<double>()) << seen;
  }
  cache.Truncate(5);
  const at::Tensor again = model->Logits(ids.narrow(1, 5, 1), &cache);
  EXPECT_LE((again - whole.narrow(1, 5, 1)).abs().max().item<double>(), 0.02);
  EXPECT_ANY_THROW(model->Logits(Ids({2, 19}, 1), &cache));
}

INSTANTIATE_TEST_SUITE_P(Types, ModelTypes, testing::Values(at::kFloat, at::kBFloat16),
                         [](const auto& info) { return info.param == at::kFloat ? "F32" : "BF16"; });

TEST(Model, AccumulatedGradientsEqualTheFullBatch) {
  for (const bool tied : {false, true}) {
    auto model = MakeModel(Tiny(tied), at::kFloat, at::kCPU, 3).value();
    model->buffer().EnableGradients();
    const at::Tensor inputs = Ids({4, 16}, 5), labels = Ids({4, 16}, 6);
    labels[1].narrow(0, 3, 13).fill_(-100);  // rows weigh by their tokens, not alike
    model->LossSum(inputs, labels).backward();
    const at::Tensor full = model->buffer().gradients().clone();
    model->buffer().gradients().zero_();
    for (std::int64_t row = 0; row < 4; ++row) {
      model->LossSum(inputs.narrow(0, row, 1), labels.narrow(0, row, 1)).backward();
    }
    const at::Tensor parts = model->buffer().gradients();
    EXPECT_LE((full - parts).abs().max().item<double>(), 1e-5 * full.abs().max().item<double>());
  }
}

/// Ten updates, twice: the same bits.
TEST(Model, TrainingRepeatsBitForBit) {
  const auto run = [] {
    auto model = MakeModel(Tiny(), at::kFloat, at::kCPU, 3).value();
    model->buffer().EnableGradients();
    Adamw optimizer(model->buffer(), {});
    std::vector<float> losses;
    for (std::uint64_t step = 0; step < 10; ++step) {
      at::Tensor loss = model->LossSum(Ids({4, 32}, step % 3), Ids({4, 32}, 10 + step % 3));
      loss.backward();
      losses.push_back(loss.item<float>());
      const double scale = 1.0 / (4 * 32);
      optimizer.Step(3e-3, scale * ClipScale(optimizer.GradientNorm(scale), 1));
    }
    return losses;
  };
  const std::vector<float> first = run();
  EXPECT_EQ(first, run());
  EXPECT_LT(first.back(), first.front());
}

TEST(Parameters, RawBytesConvertOnTheWayIn) {
  const at::Tensor into = at::zeros({2, 2}, at::kBFloat16);
  const float values[] = {1, 2, 3, 4};
  ASSERT_TRUE(CopyInto(into, at::kFloat, std::as_bytes(std::span(values))));
  EXPECT_EQ(into[1][0].item<float>(), 3);
  EXPECT_FALSE(CopyInto(into, at::kBFloat16, std::as_bytes(std::span(values))));
  EXPECT_EQ(ParseScalarType("BF16").value(), at::kBFloat16);
  EXPECT_FALSE(ParseScalarType("F8_E4M3"));
}

}  // namespace
}  // namespace millrace::engine
