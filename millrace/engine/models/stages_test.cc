// Models in stages, and blocks that are computed again, against the whole model: the same bits.
#include "millrace/engine/models/stages.h"

#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "millrace/engine/config/families.h"
#include "millrace/engine/models/make_model.h"
#include "millrace/engine/testing/memory_meter.h"

namespace millrace::engine {
namespace {

constexpr std::int64_t kLayers = 5, kTokens = 61, kRowLength = 16;

std::shared_ptr<const ModelConfig> TinyOf(std::string_view family) {
  Json json = {{"model_type", family}, {"vocab_size", kTokens}};
  if (family == "gpt2" || family == "gptj") {
    json.update({{"n_embd", 16}, {"n_layer", kLayers}, {"n_head", 2}, {"n_positions", 32}, {"rotary_dim", 4}});
    json.update({{"embd_pdrop", 0.1}, {"attn_pdrop", 0.1}, {"resid_pdrop", 0.1}});
  } else {
    json.update({{"hidden_size", 16}, {"intermediate_size", 24}, {"num_hidden_layers", kLayers}});
    json.update({{"num_attention_heads", 2}, {"max_position_embeddings", 32}, {"attention_dropout", 0.1}});
  }
  if (family == "bert") json["architectures"] = {"BertForPreTraining"};
  return ParseModelConfig(json, "config.json").value();
}

at::Tensor Draw(at::IntArrayRef shape, std::uint64_t seed, std::int64_t high = kTokens) {
  return at::randint(high, shape, at::detail::createCPUGenerator(seed), at::kLong);
}

/// Two rows of three documents. A masked model learns from some of the tokens and from the rows.
struct Sample {
  at::Tensor inputs = Draw({2, 16}, 1), labels = Draw({2, 16}, 2), segments = Draw({2, 16}, 3, 2);
  at::Tensor row_labels = Draw({2}, 4, 2);
  std::vector<std::int32_t> documents = {0, 7, 16, 32};
  ModelBatch Batch() const {
    return {.inputs = inputs,
            .labels = labels,
            .documents = documents,
            .segments = segments,
            .row_labels = row_labels,
            .dropout = ops::DropoutRows{.seed = 5, .step = 2, .first_sample = 8, .row_length = 16}};
  }
};

struct Learnt {
  at::Tensor loss;
  std::map<std::string, at::Tensor> gradients;
};

using Models = std::vector<std::unique_ptr<Model>>;

/// One model a stage.
Models MakeStages(const std::shared_ptr<const ModelConfig>& config, int count, at::ScalarType dtype) {
  Models models;
  for (const ModelStage& stage : DivideModel(*config, {.pipeline = count}, kRowLength)) {
    models.push_back(MakeModel(config, dtype, at::kCPU, 7, {.stages = {stage}}).value());
    models.back()->buffer().EnableGradients();
  }
  return models;
}

/// Passes a batch through the stages, forward and back, twice.
Learnt LearnIn(const Models& models) {
  const Sample sample;
  Learnt learnt;
  for (int pass = 0; pass < 2; ++pass) {
    std::vector<at::Tensor> inputs(models.size()), outputs(models.size());
    for (std::size_t i = 0; i < models.size(); ++i) {
      if (i > 0) inputs[i] = outputs[i - 1].detach().requires_grad_();
      outputs[i] = models[i]->Forward(0, sample.Batch(), inputs[i]);
    }
    learnt.loss = outputs.back().detach();
    at::Tensor gradient;
    for (std::size_t i = models.size(); i-- > 0;) {
      models[i]->Backward(0, outputs[i], gradient);
      if (i > 0) gradient = inputs[i].grad();
    }
  }
  for (const auto& model : models) {
    for (const NamedParameter& parameter : model->Parameters()) {
      at::Tensor& sum = learnt.gradients[parameter.name];
      if (sum.defined()) EXPECT_TRUE(parameter.shared_by_stages) << parameter.name;
      sum = sum.defined() ? sum + parameter.gradient : parameter.gradient.clone();
    }
  }
  return learnt;
}

void ExpectSame(const Learnt& got, const Learnt& want) {
  EXPECT_TRUE(got.loss.equal(want.loss)) << got.loss << " is not " << want.loss;
  ASSERT_EQ(got.gradients.size(), want.gradients.size());
  for (const auto& [name, gradient] : want.gradients) {
    const at::Tensor other = got.gradients.at(name);
    // The two uses of a tied embedding add up in another order.
    const bool tied = name.find("wte") != std::string::npos || name.find("word_embeddings") != std::string::npos;
    EXPECT_TRUE(tied ? at::allclose(other, gradient, 1e-4, 1e-6) : other.equal(gradient)) << name;
  }
}

class StagesTest : public ::testing::TestWithParam<std::tuple<std::string, at::ScalarType>> {
 protected:
  std::shared_ptr<const ModelConfig> config() const { return TinyOf(std::get<0>(GetParam())); }
  Models Make(int count) const { return MakeStages(config(), count, std::get<1>(GetParam())); }
};

TEST_P(StagesTest, LearnAsTheWholeModelDoes) {
  const Learnt whole = LearnIn(Make(1));
  for (const int count : {2, 3, 5, 7}) ExpectSame(LearnIn(Make(count)), whole);
}

TEST_P(StagesTest, RecomputedBlocksLearnTheSame) {
  const Learnt whole = LearnIn(Make(1));
  for (const int count : {1, 2}) {
    for (const auto& [what, every] :
         {std::pair{Recompute::kFull, 1}, {Recompute::kFull, 2}, {Recompute::kSelective, 1}}) {
      const Models models = Make(count);
      for (const auto& model : models) model->SetRecompute(what, every);
      ExpectSame(LearnIn(models), whole);
    }
  }
}

TEST_P(StagesTest, RecomputedBlocksKeepLess) {
  const auto kept_by = [&](Recompute what) {
    const Models models = Make(1);
    models[0]->SetRecompute(what);
    const Sample sample;
    MemoryMeter meter;
    const at::Tensor loss = models[0]->LossSum(sample.Batch());
    return meter.bytes();
  };
  const std::int64_t all = kept_by(Recompute::kNone), few = kept_by(Recompute::kSelective);
  const bool norms_are_outputs = std::get<0>(GetParam()) == "bert";  // only its activation function's result goes
  EXPECT_LT(few, all * (norms_are_outputs ? 0.95 : 0.85));
  EXPECT_LT(kept_by(Recompute::kFull), all * 0.5);
}

INSTANTIATE_TEST_SUITE_P(Families, StagesTest,
                         ::testing::Combine(::testing::Values("llama", "gpt2", "gptj", "bert"),
                                            ::testing::Values(at::kFloat, at::kBFloat16)),
                         [](const auto& info) {
                           return std::get<0>(info.param) + (std::get<1>(info.param) == at::kFloat ? "F32" : "BF16");
                         });

/// Writes down what it is told.
class Recorder final : public GroupHooks {
 public:
  void BeforeForward(std::size_t group) override { Add('(', group); }
  void AfterForward(std::size_t group) override { Add(')', group); }
  void BeforeBackward(std::size_t group) override { Add('<', group); }
  void AfterBackward(std::size_t group) override { Add('>', group); }
  std::string text;

 private:
  void Add(char what, std::size_t group) { text += what + std::to_string(group) + ' '; }
};

TEST(GroupHooks, HearOfEachPartInOrder) {
  for (const Recompute recompute : {Recompute::kNone, Recompute::kFull}) {
    const auto model = MakeModel(TinyOf("gpt2"), at::kFloat, at::kCPU, 1).value();
    model->buffer().EnableGradients();
    model->SetRecompute(recompute);
    Recorder recorder;
    model->buffer().hooks = &recorder;
    const Sample sample;
    const at::Tensor loss = model->LossSum(sample.Batch());
    // Group 6 is the head, which is tied to the embedding, group 0.
    EXPECT_EQ(recorder.text, "(0 )0 (1 )1 (2 )2 (3 )3 (4 )4 (5 )5 (6 (0 )6 )0 ");
    recorder.text.clear();
    model->Backward(0, loss);
    EXPECT_EQ(recorder.text, "<6 <0 >6 >0 <5 >5 <4 >4 <3 >3 <2 >2 <1 >1 <0 >0 ");
    recorder.text.clear();
    const at::NoGradGuard no_grad;
    model->LossSum(sample.Batch());
    EXPECT_EQ(recorder.text, "(0 )0 (1 )1 (2 )2 (3 )3 (4 )4 (5 )5 (6 (0 )6 )0 ");
  }
}

std::shared_ptr<const ModelConfig> NarrowLlama(std::int64_t layers) {
  Json json = {{"model_type", "llama"}, {"vocab_size", 512}, {"hidden_size", 16}, {"num_attention_heads", 2}};
  json.update({{"intermediate_size", 32}, {"num_hidden_layers", layers}});
  return ParseModelConfig(json, "config.json").value();
}

std::vector<std::int64_t> BlocksOf(const std::vector<ModelStage>& stages) {
  std::vector<std::int64_t> blocks;
  for (const ModelStage& stage : stages) blocks.push_back(stage.last - stage.first);
  return blocks;
}

TEST(DivideModel, GivesTheEndsToTheFirstAndTheLastStage) {
  for (const std::int64_t layers : {1, 4, 7, 32}) {
    for (int ranks = 1; ranks <= 5; ++ranks) {
      for (int virtual_stages = 1; virtual_stages <= 2; ++virtual_stages) {
        const ParallelOptions options{.pipeline = ranks, .virtual_stages = virtual_stages};
        const std::vector<ModelStage> stages = DivideModel(*NarrowLlama(layers), options, 64);
        ASSERT_EQ(stages.size(), static_cast<std::size_t>(ranks * virtual_stages));
        std::int64_t next = 0;
        for (const ModelStage& stage : stages) {
          EXPECT_EQ(stage.first, next);
          EXPECT_EQ(stage.embeds, &stage == &stages.front());
          EXPECT_EQ(stage.predicts, &stage == &stages.back());
          next = stage.last;
        }
        EXPECT_EQ(next, layers);
        std::size_t mine = 0;
        for (int rank = 0; rank < ranks; ++rank) {
          for (const ModelStage& stage : StagesOfRank(*NarrowLlama(layers), options, 64, rank)) {
            EXPECT_EQ(stage, stages[static_cast<std::size_t>(rank) + ranks * (mine++ % virtual_stages)]);
          }
        }
        EXPECT_EQ(mine, stages.size());
      }
    }
  }
}

/// The head is 8,192 matrix elements, a block 2,560, and the attention of 16 channels grows with the sequence.
TEST(DivideModel, CountsAttentionAndRecomputation) {
  const auto config = NarrowLlama(12);
  EXPECT_EQ(BlocksOf(DivideModel(*config, {.pipeline = 2}, 16)), (std::vector<std::int64_t>{7, 5}));
  EXPECT_EQ(BlocksOf(DivideModel(*config, {.pipeline = 2}, 4096)), (std::vector<std::int64_t>{6, 6}));
  const ParallelOptions again{.pipeline = 2, .recompute = Recompute::kFull};
  EXPECT_EQ(BlocksOf(DivideModel(*config, again, 16)), (std::vector<std::int64_t>{7, 5}));
}

}  // namespace
}  // namespace millrace::engine
