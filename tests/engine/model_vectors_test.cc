// Our models against transformers': logits, loss, every gradient and greedy decoding of a tiny random model of each
// family, which make_model_vectors.py wrote as Hugging Face folders.
#include <gtest/gtest.h>

#include <span>

#include "tests/engine/vectors.h"

namespace millrace::engine {
namespace {

/// A folder in testdata.
struct Family {
  std::string folder;
  bool classifies = false;  ///< BERT, and GPT-2 with classes
};
void PrintTo(const Family& family, std::ostream* out) { *out << family.folder; }

class ModelVectors : public testing::TestWithParam<std::tuple<Family, at::ScalarType>> {
 protected:
  void SetUp() override {
    const auto& [family, dtype] = GetParam();
    auto model = LoadModel(Folder(family.folder), dtype);
    ASSERT_TRUE(model) << model.error().ToString();
    model_ = *std::move(model);
    auto expected = LoadSafetensors(Folder(family.folder) / "expected.safetensors");
    ASSERT_TRUE(expected) << expected.error().ToString();
    expected_ = *std::move(expected);
    auto tolerances = Tolerances::Load(Folder(family.folder), dtype, kFloatTolerance);
    ASSERT_TRUE(tolerances) << tolerances.error().ToString();
    tolerances_ = *std::move(tolerances);
  }

  bool classifies() const { return std::get<0>(GetParam()).classifies; }
  const at::Tensor& Expected(const std::string& name) const { return expected_.at(name); }
  ModelBatch Batch() const {
    ModelBatch batch{.inputs = Expected("input_ids"), .labels = Expected("labels")};
    if (!classifies()) return batch;
    const at::Tensor& bounds = Expected("documents");
    batch.documents = {bounds.data_ptr<std::int32_t>(), static_cast<std::size_t>(bounds.numel())};
    if (expected_.contains("token_type_ids")) batch.segments = Expected("token_type_ids");
    batch.row_labels = Expected("row_labels");
    batch.row_loss_weight = 2.5;
    return batch;
  }

  std::unique_ptr<Model> model_;
  Tensors expected_;
  Tolerances tolerances_;
};

TEST_P(ModelVectors, PredictsAsTransformersDoes) {
  at::Tensor want = Expected("logits");
  if (want.dim() == 2) want = want.unsqueeze(1);  // of a classifier: one place a row
  ExpectClose(model_->Logits(Expected("input_ids")), want, tolerances_.Of("logits"), "logits");
}

TEST_P(ModelVectors, LearnsAsTransformersDoes) {
  model_->buffer().EnableGradients();
  const at::Tensor loss = model_->LossSum(Batch());
  ExpectClose(loss.detach().view({1}), Expected("loss"), tolerances_.OfLoss("loss"), "loss");
  loss.backward();
  ExpectGradients(*model_, expected_, tolerances_);
}

TEST_P(ModelVectors, GeneratesTheSameTokens) {
  if (classifies() || std::get<1>(GetParam()) != at::kFloat) return;
  CachedRows cache = model_->MakeCachedRows(1, 64);
  at::Tensor next = Expected("input_ids").narrow(0, 0, 1);
  std::vector<std::int64_t> made;
  const at::Tensor& want = Expected("generated");
  for (std::int64_t i = 0; i < want.numel(); ++i) {
    next = model_->Logits(next, &cache).argmax(-1);
    made.push_back(next.item<std::int64_t>());
  }
  EXPECT_EQ(made,
            std::vector<std::int64_t>(want.data_ptr<std::int64_t>(), want.data_ptr<std::int64_t>() + want.numel()));
}

TEST_P(ModelVectors, GeneratesTheSameBitsInAnyBatch) {
  if (!model_->config().generates() || classifies()) return;
  const std::string& family = std::get<0>(GetParam()).folder;
  if (family == "dynamic" || family.contains("long")) GTEST_SKIP() << "angles depend on the length";
  const at::Tensor input = Expected("input_ids").select(0, 0).to(at::kInt).contiguous();
  const std::span<const std::int32_t> text(input.data_ptr<std::int32_t>(), static_cast<std::size_t>(input.numel()));
  const std::size_t half = text.size() / 2;
  KvCache cache = model_->MakeCache(8, 16);
  const std::vector<std::int32_t> one{5, 1}, other{2, 7};
  // A token at a time, then as two parts of a prompt beside another text.
  at::Tensor alone, before;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const SequencePart part{.tokens = text.subspan(i, 1), .past = static_cast<std::int64_t>(i), .blocks = one};
    before = alone;
    alone = model_->Step({&part, 1}, cache);
  }
  const std::vector<SequencePart> first{{.tokens = text.first(half), .blocks = one, .logits = 0},
                                        {.tokens = text.first(1), .blocks = other, .logits = 0}};
  EXPECT_FALSE(model_->Step(first, cache).defined());
  const std::vector<SequencePart> second{
      {.tokens = text.subspan(1), .past = 1, .blocks = other, .logits = 2},
      {.tokens = text.subspan(half), .past = static_cast<std::int64_t>(half), .blocks = one}};
  const at::Tensor together = model_->Step(second, cache);
  EXPECT_TRUE(together[0].equal(before[0])) << "of the last token but one";
  EXPECT_TRUE(together[1].equal(alone[0]));
  EXPECT_TRUE(together[2].equal(alone[0]));
}

TEST_P(ModelVectors, ItsConfigurationSurvivesItsJson) {
  const Json json = model_->config().ToJson();
  const auto again = ParseModelConfig(json, "config.json");
  ASSERT_TRUE(again) << again.error().ToString();
  EXPECT_EQ(DumpJson((*again)->ToJson()), DumpJson(json));
  std::int64_t elements = 0;
  for (const NamedParameter& parameter : model_->Parameters()) elements += parameter.elements();
  EXPECT_EQ((*again)->ParameterCount(), elements);
}

INSTANTIATE_TEST_SUITE_P(
    Families, ModelVectors,
    testing::Combine(testing::Values(Family{"llama3"}, Family{"mistral"}, Family{"qwen2"}, Family{"qwen3"},
                                     Family{"gpt2"}, Family{"gptj"}, Family{"yarn"}, Family{"yarn_mscale"},
                                     Family{"dynamic"}, Family{"longrope_short"}, Family{"longrope"},
                                     Family{"qwen2_window"}, Family{"qwen3_window"}, Family{"ministral"},
                                     Family{"olmo2"}, Family{"granite"}, Family{"smollm3"}, Family{"phi3"},
                                     Family{"phi3_long"}, Family{"gemma2"}, Family{"gemma3"}, Family{"glm4"},
                                     Family{"bert", true}, Family{"bert_masked", true}, Family{"bert_classes", true},
                                     Family{"gpt2_classes", true}),
                     testing::Values(at::kFloat, at::kBFloat16)),
    [](const auto& info) {
      const bool wide = std::get<1>(info.param) == at::kFloat;
      return std::get<0>(info.param).folder + (wide ? "_f32" : "_bf16");
    });

}  // namespace
}  // namespace millrace::engine
