// LoRA on whole models: what is trained, and the same training in every layout.
#include "millrace/engine/models/lora.h"

#include <gtest/gtest.h>

#include <set>

#include "millrace/engine/testing/train_ranks.h"

namespace millrace::engine {
namespace {

constexpr LoraOptions Lora(double dropout = 0) { return {.rank = 4, .alpha = 8, .dropout = dropout}; }

std::unique_ptr<Model> MakeLora(const std::string& model, LoraOptions lora) {
  return MakeModel(TinyConfig(model), at::kFloat, at::kCPU, 5, {.lora = std::move(lora)}).value();
}
std::set<std::string> Adapted(Model& model) {
  std::set<std::string> modules;
  for (const NamedParameter& parameter : model.Parameters()) {
    EXPECT_EQ(parameter.trainable, parameter.name.find(".lora_") != std::string::npos) << parameter.name;
    if (parameter.name.ends_with(kLoraDown)) {
      modules.insert(parameter.name.substr(0, parameter.name.size() - kLoraDown.size()));
    }
  }
  return modules;
}

TEST(Lora, AllLinearLeavesOutWhatPredicts) {
  const auto model = MakeLora("llama", Lora());
  std::set<std::string> all;
  for (const char* layer : {"0", "1"}) {
    for (const char* part : {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
                             "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"}) {
      all.insert(fmt::format("model.layers.{}.{}", layer, part));
    }
  }
  EXPECT_EQ(Adapted(*model), all);
}

TEST(Lora, TargetsAreModulesOfAnyFamily) {
  LoraOptions lora = Lora();
  lora.targets = {"v_proj", "model.layers.1.mlp.down_proj"};
  const auto llama = MakeLora("llama", lora);
  EXPECT_EQ(Adapted(*llama),
            (std::set<std::string>{"model.layers.0.self_attn.v_proj", "model.layers.1.self_attn.v_proj",
                                   "model.layers.1.mlp.down_proj"}));
  lora.targets = {"c_attn"};
  const auto gpt2 = MakeLora("gpt2", lora);
  EXPECT_EQ(Adapted(*gpt2), (std::set<std::string>{"transformer.h.0.attn.c_attn", "transformer.h.1.attn.c_attn"}));
}

TEST(Lora, ANewAdapterChangesNothing) {
  const auto plain = MakeModel(TinyConfig("llama"), at::kFloat, at::kCPU, 5).value();
  const auto adapted = MakeLora("llama", Lora());
  const at::Tensor ids = at::arange(16).view({2, 8});
  EXPECT_TRUE(plain->Logits(ids).equal(adapted->Logits(ids)));
}

TEST(Lora, BeginsUniformlyWithinTheRootOfTheInputs) {
  const auto model = MakeLora("llama", {.rank = 64, .alpha = 8});
  for (const NamedParameter& parameter : model->Parameters()) {
    if (parameter.name.ends_with(kLoraUp)) EXPECT_FALSE(parameter.tensor.any().item<bool>());
    if (!parameter.name.ends_with(kLoraDown)) continue;
    const double bound = 1 / std::sqrt(static_cast<double>(parameter.tensor.size(1)));
    EXPECT_LE(parameter.tensor.abs().max().item<double>(), bound);
    EXPECT_GE(parameter.tensor.abs().max().item<double>(), 0.97 * bound);
    EXPECT_NEAR(parameter.tensor.std().item<double>(), bound / std::sqrt(3), 0.05 * bound);
  }
}

TEST(Lora, WeightsThatAreReadHaveNoInitialValues) {
  const auto make = [](InitialValues values, int zero) {
    return MakeModel(TinyConfig("llama"), at::kFloat, at::kCPU, 5,
                     {.sharding = {.ranks = 2, .rank = 1, .zero = zero}, .lora = Lora(), .initial_values = values})
        .value();
  };
  for (const int zero : {0, 1, 3}) {
    const auto all = make(InitialValues::kAll, zero), adapters = make(InitialValues::kAdapters, zero),
               none = make(InitialValues::kNone, zero);
    const auto &pieces = all->buffer().owned_pieces(), &some = adapters->buffer().owned_pieces(),
               &read = none->buffer().owned_pieces();
    ASSERT_EQ(some.size(), pieces.size());
    ASSERT_EQ(read.size(), pieces.size());
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      const std::string& name = all->Parameters()[pieces[i].parameter].name;
      const at::Tensor want = IsOfAdapter(name) ? pieces[i].values : at::zeros_like(pieces[i].values);
      EXPECT_TRUE(some[i].values.equal(want)) << name << ", stage " << zero;
      EXPECT_FALSE(read[i].values.any().item<bool>()) << name << ", stage " << zero;
    }
  }
}

TEST(Lora, HeadsThatPredictTokensGetAnAdapterIfTheyAreNamed) {
  LoraOptions lora = Lora();
  lora.targets = {"lm_head", "v_proj"};
  for (const char* name : {"llama", "tied"}) {
    const auto plain = MakeModel(TinyConfig(name), at::kFloat, at::kCPU, 5).value();
    const auto model = MakeLora(name, lora);
    EXPECT_TRUE(Adapted(*model).contains("lm_head")) << name;
    const at::Tensor ids = at::arange(16).view({2, 8});
    EXPECT_TRUE(plain->Logits(ids).equal(model->Logits(ids))) << name;
  }
  lora.dora = true;
  const auto refused = MakeModel(TinyConfig("llama"), at::kFloat, at::kCPU, 5, {.lora = lora});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::kUnsupported);
}

TEST(Lora, LayersThatScoreAreRefused) {
  LoraOptions lora = Lora();
  lora.targets = {"score"};
  Json json = TinyConfig("gpt2")->ToJson();
  SetHeads(json, {.tokens = false, .rows = true}, 3);
  const auto config = ParseModelConfig(json, "config.json").value();
  const auto model = MakeModel(config, at::kFloat, at::kCPU, 5, {.lora = lora});
  ASSERT_FALSE(model);
  EXPECT_EQ(model.error().code(), Code::kUnsupported);
}

TEST(Lora, ATargetThatMatchesNothingIsNamed) {
  const auto model = MakeLora("llama", Lora());
  EXPECT_TRUE(CheckTargets("lora.targets", model->buffer(), {"all-linear", "q_proj"}, {}));
  const Status status = CheckTargets("lora.targets", model->buffer(), {"q_proj", "c_attn"}, {});
  ASSERT_FALSE(status);
  EXPECT_EQ(
      status.error().message(),
      "lora.targets: no linear layer of the model is called \"c_attn\"; write names such as q_proj, or all-linear");
}

TEST(Lora, NewMagnitudesAreTheNormsOfTheWeightsRows) {
  LoraOptions lora = Lora();
  lora.dora = true;
  const auto plain = MakeModel(TinyConfig("gpt2"), at::kFloat, at::kCPU, 5).value();
  const auto adapted = MakeLora("gpt2", lora);
  ASSERT_TRUE(InitializeMagnitudes(adapted->buffer(), nullptr, {}));
  std::size_t magnitudes = 0;
  for (const NamedParameter& parameter : adapted->Parameters()) {
    if (!parameter.name.ends_with(kLoraMagnitude)) continue;
    ++magnitudes;
    const std::string module = parameter.name.substr(0, parameter.name.size() - kLoraMagnitude.size());
    const at::Tensor weight = plain->Parameters()[plain->buffer().Find(module + ".weight")].tensor;
    EXPECT_TRUE(at::allclose(parameter.tensor, weight.norm(2, 1), 1e-6, 0)) << parameter.name;
  }
  EXPECT_EQ(magnitudes, 8U);
  const at::Tensor ids = at::arange(16).view({2, 8});
  EXPECT_TRUE(at::allclose(plain->Logits(ids), adapted->Logits(ids), 1e-5, 1e-6)) << "they change nothing";
}

struct LayoutCase {
  std::string model;
  TrainingLayout layout;
  double dropout;
  bool dora = false, head = false;
};

class LoraLayouts : public ::testing::TestWithParam<LayoutCase> {};

TEST_P(LoraLayouts, TrainsTheSameAdapters) {
  const auto& [model, layout, dropout, dora, head] = GetParam();
  TrainingTask task{.model = model, .steps = 4, .lora = Lora(dropout)};
  task.lora->dora = dora;
  if (head) task.lora->targets = {"lm_head", "v_proj", "down_proj", "c_attn"};
  // Large enough that a gradient which is near zero, and whose sum has another rounding, does not become a step of ±lr.
  task.optimizer.method = AdamwOptions{.eps = 1e-5};
  const Trained one = Train(task, {}), all = Train(task, layout);
  for (std::size_t i = 0; i < one.losses.size(); ++i) EXPECT_NEAR(all.losses[i], one.losses[i], 2e-6 * one.losses[i]);
  for (std::size_t i = 0; i < one.norms.size(); ++i) EXPECT_NEAR(all.norms[i], one.norms[i], 2e-5 * one.norms[i]);
  ASSERT_EQ(all.weights.size(), one.weights.size());
  EXPECT_GT(std::abs(one.losses[3] - one.losses[0]), 1e-3) << "it learns";
  for (const auto& [name, weight] : one.weights) {
    const at::Tensor& other = all.weights.at(name);
    EXPECT_LE((other - weight).norm().item<double>(), 2e-4 * weight.norm().item<double>() + 1e-12) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, LoraLayouts,
    ::testing::Values(
        LayoutCase{"llama", {.mesh = {.tensor = 2}}, 0.2}, LayoutCase{"llama", {.mesh = {.tensor = 4}}, 0},
        LayoutCase{"llama", {.mesh = {.tensor = 2}, .micro_batches = 3, .sequence = true}, 0.2},
        LayoutCase{"gpt2", {.mesh = {.tensor = 2}, .sequence = true}, 0},
        LayoutCase{
            "tied", {.mesh = {.pipeline = 2}, .micro_batches = 4, .schedule = PipelineSchedule::kZeroBubble}, 0.2},
        LayoutCase{"gpt2", {.mesh = {.pipeline = 2, .tensor = 2}, .micro_batches = 2}, 0},
        LayoutCase{"llama", {.zero = 1, .mesh = {.shard = 3}}, 0},
        LayoutCase{"llama", {.zero = 2, .mesh = {.shard = 2}, .micro_batches = 2}, 0},
        LayoutCase{"tied", {.zero = 3, .mesh = {.shard = 2, .tensor = 2}, .sequence = true}, 0},
        LayoutCase{"llama", {.zero = 3, .mesh = {.replica = 2, .shard = 2}, .micro_batches = 2}, 0},
        LayoutCase{"llama", {.mesh = {.tensor = 2}}, 0.2, true},
        LayoutCase{"llama", {.mesh = {.tensor = 4}, .micro_batches = 3, .sequence = true}, 0.2, true},
        LayoutCase{"gpt2", {.mesh = {.tensor = 2}, .sequence = true}, 0, true},
        LayoutCase{"tied",
                   {.mesh = {.pipeline = 2}, .micro_batches = 4, .schedule = PipelineSchedule::kZeroBubble},
                   0.2,
                   true},
        LayoutCase{"llama", {.zero = 1, .mesh = {.shard = 3}}, 0, true},
        LayoutCase{"llama", {.zero = 2, .mesh = {.shard = 2, .tensor = 2}, .micro_batches = 2}, 0, true},
        LayoutCase{"gpt2", {.zero = 3, .mesh = {.replica = 2, .shard = 2}, .micro_batches = 2}, 0, true},
        LayoutCase{"llama", {.mesh = {.tensor = 2}, .micro_batches = 3, .sequence = true}, 0.2, false, true},
        LayoutCase{"tied", {.mesh = {.pipeline = 2, .tensor = 2}, .micro_batches = 2}, 0.2, false, true},
        LayoutCase{"llama", {.zero = 3, .mesh = {.shard = 2}}, 0, false, true}),
    [](const auto& info) {
      return fmt::format("{}_{}{}", info.index, info.param.model,
                         info.param.dora   ? "_dora"
                         : info.param.head ? "_head"
                                           : "");
    });

}  // namespace
}  // namespace millrace::engine
