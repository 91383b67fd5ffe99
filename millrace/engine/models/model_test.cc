#include "millrace/engine/config/families.h"
#include "millrace/engine/models/make_model.h"

#include <gtest/gtest.h>

#include <random>
#include <span>

#include "millrace/engine/families/llama/llama_config.h"
#include "millrace/engine/optim/adamw.h"
#include "millrace/engine/parameters/scalar_types.h"
#include "millrace/engine/sharding/divided_gradients.h"

namespace millrace::engine {
namespace {

std::shared_ptr<LlamaConfig> Tiny(bool tied = false) {
  auto config = std::make_shared<LlamaConfig>();
  config->vocab_size = 97;
  config->hidden_size = 32;
  config->intermediate_size = 48;
  config->num_layers = 2;
  config->num_heads = 4;
  config->num_kv_heads = 2;
  config->max_positions = 64;
  config->tie_word_embeddings = tied;
  return config;
}

at::Tensor Ids(at::IntArrayRef shape, std::uint64_t seed) {
  return at::randint(97, shape, at::detail::createCPUGenerator(seed), at::kLong);
}

TEST(ModelConfig, SurvivesItsJson) {
  const auto config = Tiny(true);
  config->rope_theta = 500000;
  const auto again = ParseModelConfig(config->ToJson(), "config.json");
  ASSERT_TRUE(again) << again.error().ToString();
  EXPECT_EQ(DumpJson((*again)->ToJson()), DumpJson(config->ToJson()));
}

TEST(ModelConfig, RefusesWhatItWouldGetWrong) {
  const auto code = [](std::string_view key, Json value) {
    Json json = Tiny()->ToJson();
    json[std::string(key)] = std::move(value);
    const auto config = ParseModelConfig(json, "config.json");
    return config ? "ok" : std::string(CodeName(config.error().code()));
  };
  EXPECT_EQ(code("model_type", "mamba"), "unsupported");
  EXPECT_EQ(code("rope_scaling", Json{{"rope_type", "proportional"}}), "unsupported");
  EXPECT_EQ(code("rope_scaling", Json{{"rope_type", "dynamic"}}), "invalid_argument");
  EXPECT_EQ(code("rope_scaling", Json{{"rope_type", "dynamic"}, {"factor", 0.5}}), "invalid_argument");
  EXPECT_EQ(code("rope_scaling", Json{{"type", "yarn"}, {"factor", 2}, {"beta_slow", 40}}), "invalid_argument");
  EXPECT_EQ(code("rope_scaling", Json{{"type", "longrope"}, {"short_factor", {1, 1}}, {"long_factor", {1, "x"}}}),
            "invalid_argument");
  EXPECT_EQ(code("rope_scaling", Json{{"type", "longrope"}, {"short_factor", {1, 1}}, {"long_factor", {2, 2}}}),
            "invalid_argument");
  EXPECT_EQ(code("rope_scaling", nullptr), "ok");
  EXPECT_EQ(code("attention_bias", true), "ok");
  EXPECT_EQ(code("attention_dropout", 1), "invalid_argument");
  EXPECT_EQ(code("hidden_act", "gelu"), "unsupported");
  EXPECT_EQ(code("hidden_size", -1), "invalid_argument");
  EXPECT_EQ(code("num_key_value_heads", 3), "invalid_argument");
  EXPECT_EQ(code("vocab_size", 1LL << 40), "invalid_argument");
  EXPECT_EQ(code("head_dim", 7), "invalid_argument");
}

/// `rope_scaling` is the old name of `rope_parameters`, and `type` that of `rope_type`.
TEST(ModelConfig, ReadsBothNamesOfRopeScalings) {
  Json scaling = {{"type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 16}};
  const auto read = [](std::string_view key, const Json& value) {
    Json json = Tiny()->ToJson();
    json[std::string(key)] = value;
    return DumpJson((*ParseModelConfig(json, "config.json"))->ToJson());
  };
  const std::string old_names = read("rope_scaling", scaling);
  EXPECT_NE(old_names.find("\"attention_factor\""), std::string::npos) << old_names;
  scaling["rope_type"] = "yarn";
  scaling.erase("type");
  EXPECT_EQ(read("rope_parameters", scaling), old_names);
}

/// Angles that depend on the length of a sequence do not depend on what stands beside the sequence.
TEST(ModelConfig, RotatesEachDocumentByItsOwnLength) {
  const Json scalings[] = {{{"rope_type", "dynamic"}, {"factor", 3}},
                           {{"rope_type", "longrope"},
                            {"short_factor", {1, 1.2, 1.5, 2}},
                            {"long_factor", {2, 3, 4, 6}},
                            {"original_max_position_embeddings", 7}}};
  for (const Json& scaling : scalings) {
    Json json = Tiny()->ToJson();
    json["max_position_embeddings"] = scaling["rope_type"] == "dynamic" ? 8 : 64;
    json["rope_scaling"] = scaling;
    auto model = MakeModel(ParseModelConfig(json, "config.json").value(), at::kFloat, at::kCPU, 1).value();
    const at::Tensor ids = Ids({1, 25}, 3), inputs = ids.narrow(1, 0, 24), labels = ids.narrow(1, 1, 24);
    const std::int32_t bounds[] = {0, 5, 6, 15, 24};  // two short ones, then two long ones of equal length
    double alone = 0;
    for (std::size_t i = 0; i + 1 < std::size(bounds); ++i) {
      const std::int64_t begin = bounds[i], length = bounds[i + 1] - begin;
      alone += model->LossSum(inputs.narrow(1, begin, length), labels.narrow(1, begin, length)).item<double>();
    }
    EXPECT_NEAR(model->LossSum(inputs, labels, bounds).item<double>(), alone, 1e-5 * alone) << scaling["rope_type"];
    EXPECT_THROW(model->LossSum(Ids({1, 65}, 4), Ids({1, 65}, 5)), c10::Error);
  }
}

TEST(ModelConfig, CountsParameters) {
  for (const bool tied : {false, true}) {
    auto model = MakeModel(Tiny(tied), at::kFloat, at::kCPU, 1).value();
    std::int64_t elements = 0;
    for (const NamedParameter& p : model->Parameters()) elements += p.elements();
    EXPECT_EQ(elements, Tiny(tied)->ParameterCount());
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

class ModelTypes : public ::testing::TestWithParam<at::ScalarType> {};

TEST_P(ModelTypes, GenerationWithACacheEqualsTheWholeForward) {
  auto model = MakeModel(Tiny(), GetParam(), at::kCPU, 3).value();
  const at::Tensor ids = Ids({2, 20}, 4);
  const at::Tensor whole = model->Logits(ids);
  CachedRows cache = model->MakeCachedRows(2, 20);
  std::int64_t seen = 0;
  for (const std::int64_t count : {5, 1, 1, 6, 1, 6}) {
    const at::Tensor logits = model->Logits(ids.narrow(1, seen, count), &cache);
    seen += count;
    EXPECT_EQ(cache.length(), seen);
    const at::Tensor want = whole.narrow(1, seen - 1, 1);
    const double tolerance = GetParam() == at::kFloat ? 1e-5 : 2e-2;
    EXPECT_LE((logits - want).abs().max().item<double>(), tolerance * want.abs().max().item<double>()) << seen;
  }
  cache.SetLength(5);
  const at::Tensor again = model->Logits(ids.narrow(1, 5, 1), &cache);
  EXPECT_LE((again - whole.narrow(1, 5, 1)).abs().max().item<double>(), 0.02);
  EXPECT_ANY_THROW(model->Logits(Ids({2, 27}, 1), &cache));
}

/// A text in a cache, as a caller of Step() keeps it.
struct ServedText {
  std::vector<std::int32_t> tokens;
  std::vector<std::int32_t> blocks;
  std::size_t stored = 0;
};

TEST_P(ModelTypes, APartHasTheLogitsThatItHasAlone) {
  constexpr std::int64_t kBlocks = 16, kBlockTokens = 16;
  auto model = MakeModel(Tiny(), GetParam(), at::kCPU, 3).value();
  KvCache cache = model->MakeCache(kBlocks, kBlockTokens);
  std::mt19937_64 random(7);
  std::vector<ServedText> texts(5);
  std::int32_t block = kBlocks;
  for (ServedText& text : texts) {
    text.tokens.resize(1 + random() % 40);
    for (std::int32_t& token : text.tokens) token = static_cast<std::int32_t>(random() % 97);
    for (std::size_t have = 0; have < text.tokens.size(); have += kBlockTokens) text.blocks.push_back(--block);
  }
  // Each text goes on by a random number of tokens, or not at all.
  for (bool left = true; left;) {
    left = false;
    std::vector<SequencePart> parts;
    std::vector<at::Tensor> want;
    for (ServedText& text : texts) {
      const std::size_t rest = text.tokens.size() - text.stored;
      left = left || rest > 0;
      if (rest == 0 || random() % 3 == 0) continue;
      const std::size_t count = 1 + random() % rest;
      parts.push_back({.tokens = std::span(text.tokens).subspan(text.stored, count),
                       .past = static_cast<std::int64_t>(text.stored),
                       .blocks = text.blocks,
                       .logits = random() % 4 != 0});
      text.stored += count;
      if (parts.back().logits == 0) continue;
      std::vector<std::int64_t> whole(text.tokens.begin(),
                                      text.tokens.begin() + static_cast<std::ptrdiff_t>(text.stored));
      const at::Tensor logits = model->Logits(at::tensor(whole).unsqueeze(0));
      want.push_back(logits.select(1, logits.size(1) - 1));
    }
    if (parts.empty()) continue;
    const at::Tensor got = model->Step(parts, cache);
    ASSERT_EQ(got.defined(), !want.empty());
    if (want.empty()) continue;
    const at::Tensor expected = at::cat(want);
    const double tolerance = GetParam() == at::kFloat ? 1e-5 : 2e-2;
    EXPECT_LE((got - expected).abs().max().item<double>(), tolerance * expected.abs().max().item<double>());
  }
}

INSTANTIATE_TEST_SUITE_P(Types, ModelTypes, ::testing::Values(at::kFloat, at::kBFloat16),
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

/// Documents of two rows of 27 tokens: of one token, of odd lengths, and whole rows' parts.
constexpr std::int32_t kDocuments[] = {0, 1, 8, 11, 12, 27, 32, 33, 54};

struct LossAndGradients {
  double loss = 0;
  at::Tensor gradients;
};
LossAndGradients Learn(Model& model, const at::Tensor& inputs, const at::Tensor& labels,
                       std::span<const std::int32_t> documents = {}) {
  model.buffer().gradients().zero_();
  const at::Tensor loss = model.LossSum(inputs, labels, documents);
  loss.backward();
  return {loss.item<double>(), model.buffer().gradients().clone()};
}
LossAndGradients LearnOneByOne(Model& model, const at::Tensor& inputs, const at::Tensor& labels,
                               std::span<const std::int32_t> documents) {
  LossAndGradients sum{.gradients = at::zeros_like(model.buffer().gradients())};
  for (std::size_t i = 0; i + 1 < documents.size(); ++i) {
    const std::int64_t begin = documents[i], length = documents[i + 1] - begin;
    const auto part = [&](const at::Tensor& ids) { return ids.reshape({1, -1}).narrow(1, begin, length); };
    const LossAndGradients one = Learn(model, part(inputs), part(labels));
    sum.loss += one.loss;
    sum.gradients += one.gradients;
  }
  return sum;
}
void ExpectClose(const LossAndGradients& got, const LossAndGradients& want, double tolerance) {
  EXPECT_NEAR(got.loss, want.loss, tolerance * want.loss);
  EXPECT_LE((got.gradients - want.gradients).abs().max().item<double>(),
            tolerance * want.gradients.abs().max().item<double>());
}

TEST_P(ModelTypes, DocumentsThatShareRowsLearnAsIfAlone) {
  auto model = MakeModel(Tiny(), GetParam(), at::kCPU, 3).value();
  model->buffer().EnableGradients();
  const at::Tensor inputs = Ids({2, 27}, 5), labels = Ids({2, 27}, 6);
  labels[0].narrow(0, 3, 4).fill_(-100);
  const LossAndGradients packed = Learn(*model, inputs, labels, kDocuments);
  const LossAndGradients alone = LearnOneByOne(*model, inputs, labels, kDocuments);
  ExpectClose(packed, alone, GetParam() == at::kFloat ? 2e-6 : 2e-2);
  EXPECT_FALSE(packed.gradients.equal(Learn(*model, inputs, labels).gradients)) << "across documents it is another";
}

TEST(Model, BlocksTellThatAPassMakesProgress) {
  for (const Recompute recompute : {Recompute::kNone, Recompute::kFull}) {
    auto model = *MakeModel(Tiny(), at::kFloat, at::kCPU, 1);
    model->buffer().EnableGradients();
    model->SetRecompute(recompute);
    int told = 0;
    model->on_block = [&told] { ++told; };
    const at::Tensor loss = model->LossSum(Ids({2, 8}, 1), Ids({2, 8}, 2));
    EXPECT_EQ(told, 2) << "each block, forward";
    loss.backward();
    EXPECT_EQ(told, 4) << "and back";
  }
}

TEST(Model, NothingPassesFromOneDocumentToAnother) {
  auto model = MakeModel(Tiny(), at::kFloat, at::kCPU, 3).value();
  model->buffer().EnableGradients();
  const at::Tensor inputs = Ids({2, 27}, 5), labels = Ids({2, 27}, 6);
  // All is learnt from one document; the gradient of what other tokens are embedded as is exactly zero.
  for (std::size_t i = 0; i + 1 < std::size(kDocuments); ++i) {
    const std::int64_t begin = kDocuments[i], length = kDocuments[i + 1] - begin;
    at::Tensor learnt = at::full({54}, -100, at::kLong), others = Ids({54}, 7 + i);
    learnt.narrow(0, begin, length).copy_(labels.view({-1}).narrow(0, begin, length));
    others.narrow(0, begin, length).copy_(inputs.view({-1}).narrow(0, begin, length));
    const LossAndGradients one = Learn(*model, inputs, learnt.view({2, 27}), kDocuments);
    const LossAndGradients other = Learn(*model, others.view({2, 27}), learnt.view({2, 27}), kDocuments);
    EXPECT_EQ(one.loss, other.loss) << "document " << i;
    EXPECT_TRUE(one.gradients.equal(other.gradients)) << "document " << i;
  }
}

TEST(Model, RowsThatAreDocumentsNeedNotBeToldApart) {
  auto model = MakeModel(Tiny(), at::kFloat, at::kCPU, 3).value();
  model->buffer().EnableGradients();
  const at::Tensor inputs = Ids({3, 21}, 5), labels = Ids({3, 21}, 6);
  const LossAndGradients plain = Learn(*model, inputs, labels);
  const LossAndGradients told = Learn(*model, inputs, labels, {{0, 21, 42, 63}});
  EXPECT_EQ(plain.loss, told.loss);
  EXPECT_TRUE(plain.gradients.equal(told.gradients));
}

/// Padding follows the tokens that count, and has no labels. Its content does not change what is learnt.
TEST(Model, PaddingChangesNothing) {
  auto model = MakeModel(Tiny(), at::kFloat, at::kCPU, 3).value();
  model->buffer().EnableGradients();
  at::Tensor inputs = Ids({2, 27}, 5), labels = Ids({2, 27}, 6);
  inputs.narrow(1, 19, 8).fill_(2);
  labels.narrow(1, 19, 8).fill_(-100);
  const LossAndGradients padded = Learn(*model, inputs, labels);
  ExpectClose(padded, Learn(*model, inputs.narrow(1, 0, 19), labels.narrow(1, 0, 19)), 2e-6);
  inputs.narrow(1, 19, 8).copy_(Ids({2, 8}, 7));
  EXPECT_TRUE(padded.gradients.equal(Learn(*model, inputs, labels).gradients));
}

TEST(Model, DocumentsMustCoverTheRows) {
  auto model = MakeModel(Tiny(), at::kFloat, at::kCPU, 3).value();
  const at::Tensor ids = Ids({2, 50}, 5);
  EXPECT_ANY_THROW(model->LossSum(ids, ids, {{0, 50, 99}}));
  EXPECT_ANY_THROW(model->LossSum(ids, ids, {{0, 30, 30, 100}}));
  EXPECT_ANY_THROW(model->LossSum(ids, ids, {{0, 70, 100}})) << "longer than the model's positions";
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
      optimizer.Step(3e-3, scale * ClipScale(GradientNorm(model->buffer(), scale), 1));
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
