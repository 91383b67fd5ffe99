// Whole models on a GPU beside the same models on the CPU, and training steps there.
#include <ATen/cuda/CUDAContext.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "millrace/engine/config/families.h"
#include "millrace/engine/models/make_model.h"
#include "millrace/engine/ops/common/step_kernels.h"
#include "millrace/engine/optim/adamw.h"
#include "millrace/engine/parameters/scalar_types.h"
#include "millrace/engine/sharding/divided_gradients.h"

namespace millrace::engine {
namespace {

struct Case {
  std::string name;
  Json config;
  bool documents = false;
  double dropout = 0;
};

constexpr std::int64_t kVocab = 131, kRows = 3, kLength = 24;

std::vector<Case> Cases() {
  const Json llama = {{"model_type", "llama"},    {"hidden_size", 64},
                      {"intermediate_size", 96},  {"num_hidden_layers", 2},
                      {"num_attention_heads", 4}, {"num_key_value_heads", 2},
                      {"vocab_size", kVocab},     {"max_position_embeddings", 64}};
  Json tied = llama;
  tied["tie_word_embeddings"] = true;
  const auto gpt = [](const char* type, double dropout) {
    return Json{{"model_type", type},    {"n_embd", 64},          {"n_layer", 2},
                {"n_head", 4},           {"vocab_size", kVocab},  {"n_positions", 64},
                {"attn_pdrop", dropout}, {"embd_pdrop", dropout}, {"resid_pdrop", dropout}};
  };
  Json gptj = gpt("gptj", 0);
  gptj["rotary_dim"] = 8;
  const Json bert = {
      {"model_type", "bert"},          {"hidden_size", 64},          {"intermediate_size", 96},
      {"num_hidden_layers", 2},        {"num_attention_heads", 4},   {"vocab_size", kVocab},
      {"max_position_embeddings", 64}, {"hidden_dropout_prob", 0.0}, {"attention_probs_dropout_prob", 0.0}};
  Json mistral = llama;
  mistral["model_type"] = "mistral";
  mistral["sliding_window"] = 7;
  return {{"llama", llama},
          {"llama_documents", llama, true},
          {"llama_tied", tied},
          {"mistral", mistral},
          {"gpt2", gpt("gpt2", 0)},
          {"gpt2_dropout", gpt("gpt2", 0.1), false, 0.1},
          {"gptj_documents", gptj, true},
          {"bert", bert},
          {"gpt2_documents", gpt("gpt2", 0), true}};
}

/// A model on a device, with the weights that the seed gives on the CPU.
std::unique_ptr<Model> MakeOn(const Case& of, at::ScalarType type, at::Device device) {
  const auto config = ParseModelConfig(of.config, of.name).value();
  auto model = MakeModel(config, type, device, 1).value();
  if (!device.is_cpu()) {
    const at::NoGradGuard no_grad;
    const auto same = MakeModel(config, type, at::kCPU, 1).value();
    model->buffer().values().copy_(same->buffer().values());
  }
  model->buffer().EnableGradients();
  return model;
}

struct Batch {
  at::Tensor inputs, labels, row_labels;
  std::vector<std::int32_t> documents;
  double dropout = 0;
  ModelBatch On(at::Device device) const {
    ModelBatch batch{.inputs = inputs.to(device), .labels = labels, .documents = documents, .row_labels = row_labels};
    if (dropout > 0) batch.dropout = ops::DropoutRows{.seed = 5, .step = 2, .first_sample = 7, .row_length = kLength};
    return batch;
  }
};

Batch MakeBatch(const Case& of) {
  const auto generator = at::detail::createCPUGenerator(3);
  const at::Tensor ids = at::randint(kVocab, {kRows, kLength + 1}, generator, at::kLong);
  Batch batch{.inputs = ids.narrow(1, 0, kLength).contiguous(),
              .labels = ids.narrow(1, 1, kLength).contiguous(),
              .dropout = of.dropout};
  batch.labels.narrow(1, 5, 3).fill_(ops::kIgnoreLabel);
  if (of.documents) batch.documents = {0, 5, 6, 24, 41, 60, 72};
  if (of.config["model_type"] == "bert") batch.row_labels = at::tensor({0, 1, 1}, at::kLong);
  return batch;
}

struct Passed {
  double loss;
  at::Tensor gradients;  ///< on the CPU, of all parameters
};

Passed Pass(Model& model, const Batch& batch, at::Device device) {
  const at::Tensor loss = model.LossSum(batch.On(device));
  model.Backward(0, loss);
  return {loss.item<double>(), model.buffer().gradients().cpu()};
}

double Distance(const at::Tensor& a, const at::Tensor& b) {
  return ((a - b).to(at::kDouble).norm() / b.to(at::kDouble).norm()).item<double>();
}

class ModelCudaTest : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (at::cuda::getNumGPUs() == 0) GTEST_SKIP() << "there is no GPU";
  }
};

TEST_P(ModelCudaTest, HasTheNumbersOfTheCpu) {
  const Batch batch = MakeBatch(GetParam());
  const Passed cpu = Pass(*MakeOn(GetParam(), at::kFloat, at::kCPU), batch, at::kCPU);
  const Passed gpu = Pass(*MakeOn(GetParam(), at::kFloat, at::kCUDA), batch, at::kCUDA);
  EXPECT_NEAR(gpu.loss, cpu.loss, 2e-6 * cpu.loss);
  EXPECT_LT(Distance(gpu.gradients, cpu.gradients), 1e-5);
}

/// As far from float32 as the CPU's bfloat16 is.
TEST_P(ModelCudaTest, Bfloat16IsAsNearToFloat32) {
  const Batch batch = MakeBatch(GetParam());
  // Float32 with the weights that bfloat16 has.
  auto exact = MakeOn(GetParam(), at::kFloat, at::kCPU);
  auto cpu = MakeOn(GetParam(), at::kBFloat16, at::kCPU);
  {
    const at::NoGradGuard no_grad;
    exact->buffer().values().copy_(cpu->buffer().values());
  }
  const Passed reference = Pass(*exact, batch, at::kCPU);
  const Passed rounded = Pass(*cpu, batch, at::kCPU);
  const Passed gpu = Pass(*MakeOn(GetParam(), at::kBFloat16, at::kCUDA), batch, at::kCUDA);
  EXPECT_NEAR(gpu.loss, reference.loss, 0.01 * reference.loss);
  EXPECT_LT(Distance(gpu.gradients, reference.gradients), 1.4 * Distance(rounded.gradients, reference.gradients));
}

TEST_P(ModelCudaTest, RecomputesTheSameGradients) {
  const Batch batch = MakeBatch(GetParam());
  const Passed kept = Pass(*MakeOn(GetParam(), at::kBFloat16, at::kCUDA), batch, at::kCUDA);
  for (const Recompute recompute : {Recompute::kSelective, Recompute::kFull}) {
    auto model = MakeOn(GetParam(), at::kBFloat16, at::kCUDA);
    model->SetRecompute(recompute);
    const Passed again = Pass(*model, batch, at::kCUDA);
    EXPECT_EQ(again.loss, kept.loss);
    EXPECT_LT(Distance(again.gradients, kept.gradients), 1e-6) << RecomputeName(recompute);
  }
}

TEST_P(ModelCudaTest, FetchesInputsFromTheHost) {
  const Batch batch = MakeBatch(GetParam());
  const auto pass = [&](bool offload) {
    auto model = MakeOn(GetParam(), at::kBFloat16, at::kCUDA);
    model->SetRecompute(Recompute::kFull, 1, offload);
    return Pass(*model, batch, at::kCUDA);
  };
  const Passed kept = pass(false), fetched = pass(true);
  EXPECT_EQ(fetched.loss, kept.loss);
  EXPECT_EQ(Distance(fetched.gradients, kept.gradients), 0);
}

TEST_P(ModelCudaTest, LearnsAsOnTheCpu) {
  const Batch batch = MakeBatch(GetParam());
  const auto losses = [&](at::Device device) {
    auto model = MakeOn(GetParam(), at::kFloat, device);
    Adamw optimizer(model->buffer(), {});
    std::vector<double> each;
    for (int step = 0; step < 6; ++step) {
      each.push_back(Pass(*model, batch, device).loss / (kRows * kLength));
      const double scale = 1.0 / (kRows * kLength);
      const double norm = GradientNorm(model->buffer(), scale);
      optimizer.Step(3e-3, scale * ClipScale(norm, 1));
    }
    return each;
  };
  const std::vector<double> cpu = losses(at::kCPU), gpu = losses(at::kCUDA);
  for (std::size_t i = 0; i < cpu.size(); ++i) EXPECT_NEAR(gpu[i], cpu[i], 1e-4 * cpu[i]) << "step " << i;
  EXPECT_LT(gpu.back(), 0.9 * gpu.front());
}

TEST_P(ModelCudaTest, GeneratesTheLogitsOfTheCpu) {
  auto cpu = MakeOn(GetParam(), at::kFloat, at::kCPU), gpu = MakeOn(GetParam(), at::kFloat, at::kCUDA);
  if (!cpu->config().generates()) GTEST_SKIP() << "the family does not generate";
  CachedRows there = gpu->MakeCachedRows(2, 40), here = cpu->MakeCachedRows(2, 40);
  at::Tensor tokens = at::randint(kVocab, {2, 9}, at::detail::createCPUGenerator(4), at::kLong);
  for (int i = 0; i < 8; ++i) {
    const at::Tensor expected = cpu->Logits(tokens, &here);
    EXPECT_LT(Distance(gpu->Logits(tokens.to(at::kCUDA), &there).cpu(), expected), 1e-5) << "token " << i;
    tokens = expected.argmax(-1);
  }
}

/// Texts of different lengths in blocks of a cache: parts of prompts beside single tokens, then only single tokens, of
/// which there are more and then fewer. So steps are computed, recorded and repeated, with other blocks each time.
TEST_P(ModelCudaTest, StepsHaveTheLogitsOfTheCpu) {
  constexpr std::int64_t kBlocks = 64, kBlockTokens = 16;
  auto cpu = MakeOn(GetParam(), at::kFloat, at::kCPU), gpu = MakeOn(GetParam(), at::kFloat, at::kCUDA);
  if (!cpu->config().generates()) GTEST_SKIP() << "the family does not generate";
  KvCache here = cpu->MakeCache(kBlocks, kBlockTokens), there = gpu->MakeCache(kBlocks, kBlockTokens);
  struct Text {
    std::vector<std::int32_t> blocks;
    std::int64_t past = 0;
    std::int32_t next = 0;
  };
  std::vector<Text> texts(6);
  std::int32_t block = 0;
  for (Text& text : texts) {
    for (int i = 0; i < 4; ++i) text.blocks.push_back(block++ * 29 % kBlocks);
    text.next = block;
  }
  const auto step = [&](const std::vector<std::pair<std::size_t, int>>& which, const std::string& what) {
    std::vector<std::vector<std::int32_t>> tokens;
    for (const auto& [text, count] : which) {
      tokens.emplace_back();
      for (int i = 0; i < count; ++i) tokens.back().push_back((texts[text].next + 7 * i) % kVocab);
    }
    std::vector<SequencePart> parts;
    for (std::size_t i = 0; i < which.size(); ++i) {
      const Text& text = texts[which[i].first];
      parts.push_back({.tokens = tokens[i], .past = text.past, .blocks = text.blocks});
    }
    const at::Tensor expected = cpu->Step(parts, here), got = gpu->Step(parts, there).cpu();
    ASSERT_EQ(got.sizes(), expected.sizes()) << what;
    EXPECT_LT(Distance(got, expected), 1e-5) << what;
    const at::Tensor best = expected.argmax(-1);
    for (std::size_t i = 0; i < which.size(); ++i) {
      texts[which[i].first].past += which[i].second;
      texts[which[i].first].next = static_cast<std::int32_t>(best[static_cast<std::int64_t>(i)].item<std::int64_t>());
    }
  };
  step({{0, 5}, {1, 17}}, "two prompts");
  step({{0, 1}, {2, 20}, {1, 1}, {3, 1}}, "a prompt between tokens");
  step({{3, 9}, {4, 2}, {5, 30}}, "parts");
  for (int i = 0; i < 4; ++i) step({{0, 1}, {1, 1}, {2, 1}, {3, 1}, {4, 1}, {5, 1}}, fmt::format("all, {}", i));
  for (int i = 0; i < 3; ++i) step({{5, 1}, {2, 1}, {0, 1}, {3, 1}, {4, 1}}, fmt::format("five, {}", i));
  for (int i = 0; i < 3; ++i) step({{1, 1}, {4, 1}}, fmt::format("two, {}", i));
  for (int i = 0; i < 3; ++i) step({{2, 1}}, fmt::format("one, {}", i));
  step({{0, 1}, {1, 1}, {2, 1}, {3, 1}, {4, 1}, {5, 1}}, "all again");
}

/// As an eager program computes it: `train.compile: off`.
TEST_P(ModelCudaTest, PlainOpsHaveTheNumbersOfTheCpu) {
  const Batch batch = MakeBatch(GetParam());
  const ops::StepKernels plain{.plain = true};
  const ops::KernelScope scope(plain);
  const Passed cpu = Pass(*MakeOn(GetParam(), at::kFloat, at::kCPU), batch, at::kCPU);
  const Passed gpu = Pass(*MakeOn(GetParam(), at::kFloat, at::kCUDA), batch, at::kCUDA);
  EXPECT_NEAR(gpu.loss, cpu.loss, 2e-6 * cpu.loss);
  EXPECT_LT(Distance(gpu.gradients, cpu.gradients), 1e-5);
}

INSTANTIATE_TEST_SUITE_P(Families, ModelCudaTest, ::testing::ValuesIn(Cases()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace millrace::engine
