// Models that tensor-parallel ranks divide between them, against the same model on one rank.
#include <gtest/gtest.h>

#include <map>
#include <mutex>
#include <thread>

#include "millrace/collectives/connect.h"
#include "millrace/engine/config/families.h"
#include "millrace/engine/models/make_model.h"
#include "millrace/engine/optim/adamw.h"
#include "millrace/engine/sharding/divided_gradients.h"

namespace millrace::engine {
namespace {

constexpr std::int64_t kVocab = 101;  // does not divide evenly

std::shared_ptr<const ModelConfig> ConfigOf(std::string_view family) {
  Json json = {{"model_type", family}, {"vocab_size", kVocab}};
  if (family == "gpt2" || family == "gptj") {
    json.update({{"n_embd", 32}, {"n_layer", 2}, {"n_head", 4}, {"n_positions", 64}, {"rotary_dim", 4}});
    json.update({{"embd_pdrop", 0.1}, {"attn_pdrop", 0.1}, {"resid_pdrop", 0.1}});
  } else {
    json.update({{"hidden_size", 32}, {"intermediate_size", 48}, {"num_hidden_layers", 2}, {"num_attention_heads", 4}});
    // Of four ranks, two share a head of llama and of qwen2, and all share that of qwen3.
    const bool shares_twice = family == "llama" || family == "qwen2" || family == "olmo2" || family == "gemma3_text";
    const int key_heads = shares_twice ? 2 : family == "qwen3" || family == "phi3" ? 1 : 4;
    json.update({{"num_key_value_heads", key_heads}, {"head_dim", 8}, {"max_position_embeddings", 64}});
    json.update({{"tie_word_embeddings", family == "qwen3" || family == "bert"}, {"attention_dropout", 0.1}});
    if (family == "llama") json["attention_bias"] = true;
    if (family == "phi3") json["resid_pdrop"] = 0.1;
    if (family == "ministral")
      json.update({{"sliding_window", 3}, {"layer_types", {"full_attention", "sliding_attention"}}});
    if (family == "bert") json["architectures"] = {"BertForPreTraining"};
  }
  return ParseModelConfig(json, "config.json").value();
}

ModelBatch BatchOf(const at::Tensor& ids, std::span<const std::int32_t> documents) {
  return {.inputs = ids.narrow(1, 0, 24).contiguous(),
          .labels = ids.narrow(1, 1, 24).contiguous(),
          .documents = documents,
          .segments = ids.narrow(1, 0, 24).remainder(2),
          .row_labels = ids.select(1, 3).remainder(2),
          .row_loss_weight = 1.5,
          .dropout = ops::DropoutRows{.seed = 5, .step = 3, .first_sample = 40, .row_length = 24},
          .loss = {.label_smoothing = 0.1, .z_loss = 1e-3}};
}

/// The loss, and of each parameter the gradient and the initial values, as whole tensors.
struct Learnt {
  double loss = 0;
  Predictions predictions;
  std::map<std::string, at::Tensor> gradients, values;
};

void Put(std::map<std::string, at::Tensor>& whole, const NamedParameter& parameter, const at::Tensor& slice) {
  at::Tensor& tensor = whole[parameter.name];
  if (!tensor.defined()) tensor = at::zeros(parameter.whole_shape);
  if (parameter.slice.whole()) {
    tensor.copy_(slice);
  } else {
    tensor.narrow(static_cast<std::int64_t>(parameter.slice.dim), parameter.slice.begin, parameter.slice.extent)
        .copy_(slice);
  }
}

Learnt Learn(const std::shared_ptr<const ModelConfig>& config, int size, bool sequence_parallel) {
  const at::Tensor ids = at::randint(kVocab, {2, 25}, at::detail::createCPUGenerator(8), at::kLong);
  const std::int32_t documents[] = {0, 10, 24, 48};
  auto groups = collectives::ConnectThreads(size);
  Learnt learnt;
  std::mutex mutex;
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, group = std::move(groups[static_cast<std::size_t>(rank)])] {
      auto made = MakeModel(config, at::kFloat, at::kCPU, 7, {.ranks = {group.get(), sequence_parallel}});
      ASSERT_TRUE(made) << made.error().ToString();
      Model& model = **made;
      model.buffer().EnableGradients();
      Predictions predictions;
      ModelBatch batch = BatchOf(ids, documents);
      batch.predictions = &predictions;
      const at::Tensor loss = model.LossSum(batch);
      loss.backward();
      ASSERT_TRUE(SumPartialGradients(model.buffer(), {.tensor = {group.get()}, .stage = group.get()}));
      const std::lock_guard lock(mutex);
      learnt.loss = loss.item<double>();
      learnt.predictions = predictions;
      for (const NamedParameter& parameter : model.Parameters()) {
        Put(learnt.gradients, parameter, parameter.gradient);
        Put(learnt.values, parameter, parameter.tensor);
      }
    });
  }
  threads.clear();
  return learnt;
}

class Division : public ::testing::TestWithParam<std::tuple<const char*, int, bool>> {};

TEST_P(Division, RanksLearnWhatOneLearns) {
  const auto& [family, size, sequence_parallel] = GetParam();
  const auto config = ConfigOf(family);
  ASSERT_TRUE(CheckDivision(*config, size));
  const Learnt one = Learn(config, 1, false), many = Learn(config, size, sequence_parallel);
  EXPECT_NEAR(many.loss, one.loss, 2e-6 * one.loss);
  EXPECT_EQ(many.predictions.tokens, one.predictions.tokens);
  EXPECT_EQ(many.predictions.rows, one.predictions.rows);
  ASSERT_EQ(many.gradients.size(), one.gradients.size());
  for (const auto& [name, want] : one.gradients) {
    EXPECT_TRUE(many.values.at(name).equal(one.values.at(name))) << "initial values of " << name;
    const double norm = want.norm().item<double>();
    EXPECT_LE((many.gradients.at(name) - want).norm().item<double>(), 1e-5 * std::max(norm, 1e-2)) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Families, Division,
                         ::testing::Combine(::testing::Values("llama", "mistral", "ministral", "qwen2", "qwen3", "gpt2",
                                                              "gptj", "bert", "olmo2", "granite", "phi3", "gemma2",
                                                              "gemma3_text", "glm4"),
                                            ::testing::Values(2, 4), ::testing::Bool()),
                         [](const auto& info) {
                           return fmt::format("{}_{}{}", std::get<0>(info.param), std::get<1>(info.param),
                                              std::get<2>(info.param) ? "_sequence" : "");
                         });

TEST(CheckDivision, RefusesWithTheArithmetic) {
  Json json = ConfigOf("llama")->ToJson();
  json.update({{"hidden_size", 96}, {"num_attention_heads", 12}, {"num_key_value_heads", 6}});
  const auto config = ParseModelConfig(json, "config.json").value();
  for (const int ranks : {1, 2, 3, 6, 12}) EXPECT_TRUE(CheckDivision(*config, ranks)) << ranks;
  const auto says = [&](int ranks) { return CheckDivision(*config, ranks).error().ToString(); };
  EXPECT_EQ(says(4),
            "6 key-value heads do not divide among 4 tensor-parallel ranks, nor the ranks among the heads; choose "
            "another train.parallel.tensor");
  EXPECT_EQ(says(5),
            "12 attention heads do not divide among 5 tensor-parallel ranks; choose a train.parallel.tensor that "
            "divides them");
}

}  // namespace
}  // namespace millrace::engine
