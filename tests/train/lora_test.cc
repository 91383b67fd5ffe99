// Whole runs that train adapters of a model: what they keep, how they resume, what they refuse.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "millrace/train/testing/adapter_runs.h"

namespace millrace::train {
namespace {

using LoraTest = AdapterTest;

TEST_F(LoraTest, KeepsTheAdapterAlone) {
  const std::string base = Base("base", 1);
  const Options options = Adapting(base, "alone");
  const Ran ran = Run(options);
  ASSERT_TRUE(ran.outcome) << ran.outcome.error().ToString();
  EXPECT_LT(ran.losses.at(12), ran.losses.at(1));
  for (const auto& [name, bytes] : Tensors(options.checkpoint.url, 12)) {
    EXPECT_TRUE(name.starts_with("adapter/base_model.model.model.layers.") || name.starts_with("optimizer/")) << name;
    EXPECT_NE(name.find(".lora_"), std::string::npos) << name;
  }
  auto connection = object::OpenConnection({}).value();
  const auto reader = checkpoint::Reader::Open(*connection, options.checkpoint.url, 12).value();
  const Json& config = reader->manifest().meta.at("adapter_config");
  EXPECT_EQ(config.at("r"), 4);
  EXPECT_EQ(config.at("base_model_name_or_path"), base);
}

TEST_F(LoraTest, AStoppedRunGoesOnBitForBitInItsLayout) {
  const std::string base = Base("resumed-base", 1);
  for (const auto& [divided, dora] : {std::pair(false, false), std::pair(true, false), std::pair(true, true)}) {
    const int ranks = divided ? 4 : 1;
    const auto layout = [&](Options options) {
      if (divided) options.parallel = {.data = 2, .shard = 2, .tensor = 2, .zero = 2};
      options.lora->dora = dora;
      return options;
    };
    const Options whole = layout(Adapting(base, fmt::format("whole-{}-{}", ranks, dora)));
    const Options parts = layout(Adapting(base, fmt::format("parts-{}-{}", ranks, dora)));
    const Ran all = RunRanks(whole, ranks);
    ASSERT_TRUE(all.outcome) << all.outcome.error().ToString();
    ASSERT_TRUE(RunRanks(parts, ranks, 5).outcome);
    const Ran rest = RunRanks(parts, ranks);
    ASSERT_TRUE(rest.outcome) << rest.outcome.error().ToString();
    EXPECT_EQ(rest.losses.begin()->first, 7);
    for (const auto& [step, loss] : rest.losses) EXPECT_EQ(loss, all.losses.at(step)) << step;
    EXPECT_EQ(Tensors(whole.checkpoint.url, 12), Tensors(parts.checkpoint.url, 12));
  }
}

TEST_F(LoraTest, GoesOnInAnotherLayout) {
  const std::string base = Base("moved-base", 1);
  const Options options = Adapting(base, "moved");
  const Ran all = Run(Adapting(base, "unmoved"));
  ASSERT_TRUE(Run(options, 5).outcome);
  Options divided = options;
  divided.parallel = {.tensor = 2, .sequence = true, .pipeline = 2};
  const Ran rest = RunRanks(divided, 4);
  ASSERT_TRUE(rest.outcome) << rest.outcome.error().ToString();
  for (const auto& [step, loss] : rest.losses) EXPECT_NEAR(loss, all.losses.at(step), 2e-6 * loss) << step;
}

TEST_F(LoraTest, StartsFromAnAdapter) {
  const std::string base = Base("first-base", 1);
  for (const bool dora : {false, true}) {
    Options first = Adapting(base, fmt::format("first-{}", dora));
    first.lora->dora = dora;
    const Ran before = Run(first);
    ASSERT_TRUE(before.outcome);
    Options second = Adapting(base, fmt::format("second-{}", dora));
    second.lora = engine::LoraOptions{.rank = 1};  // the adapter's own rank counts
    second.adapter_url = first.checkpoint.url;
    const Ran after = Run(second);
    ASSERT_TRUE(after.outcome) << after.outcome.error().ToString();
    const double halfway = (before.losses.at(1) + before.losses.at(12)) / 2;
    EXPECT_LT(after.losses.at(1), halfway) << "it begins where the first run ended";
  }
}

/// PEFT's modules_to_save.
TEST_F(LoraTest, AnAdaptersOwnHeadAndNormsAreTrainedOn) {
  const std::string base = Base("whole-base", 1);
  Options first = Adapting(base, "whole-first");
  first.lora->whole = {"lm_head.weight", "model.layers.0.input_layernorm.weight", "model.norm.weight"};
  const Ran before = Run(first);
  ASSERT_TRUE(before.outcome) << before.outcome.error().ToString();
  const auto tensors = Tensors(first.checkpoint.url, 12);
  for (const std::string& name : first.lora->whole) {
    EXPECT_TRUE(tensors.contains("adapter/base_model.model." + name)) << name;
  }
  Options second = Adapting(base, "whole-second");
  second.lora->dropout = 0;
  second.adapter_url = first.checkpoint.url;
  const Ran after = Run(second);
  ASSERT_TRUE(after.outcome) << after.outcome.error().ToString();
  EXPECT_LT(after.losses.at(1), (before.losses.at(1) + before.losses.at(12)) / 2) << "it begins where the first ended";
  auto connection = object::OpenConnection({}).value();
  const auto reader = checkpoint::Reader::Open(*connection, second.checkpoint.url, 12).value();
  EXPECT_EQ(reader->manifest().meta.at("adapter_config").at("modules_to_save"),
            (Json{"lm_head", "model.layers.0.input_layernorm", "model.norm"}));
  Options divided = second;
  divided.checkpoint.url.clear();
  for (const engine::ParallelOptions& parallel :
       {engine::ParallelOptions{.data = 2, .shard = 2, .tensor = 2, .zero = 3},
        engine::ParallelOptions{.tensor = 2, .sequence = true, .pipeline = 2}}) {
    divided.parallel = parallel;
    const Ran again = RunRanks(divided, 4);
    ASSERT_TRUE(again.outcome) << again.outcome.error().ToString();
    for (const auto& [step, loss] : again.losses) EXPECT_NEAR(loss, after.losses.at(step), 5e-6 * loss) << step;
  }
}

/// Magnitudes begin as the norms of the weights' rows, wherever these are. So nothing has changed before the first
/// step.
TEST_F(LoraTest, NewMagnitudesChangeNothing) {
  const std::string base = Base("norms-base", 1);
  const auto first_loss = [&](bool dora, const engine::ParallelOptions& parallel, int ranks) {
    Options options = Adapting(base, "norms");
    options.checkpoint.url.clear();
    options.lora->dropout = 0;
    options.lora->dora = dora;
    options.parallel = parallel;
    const Ran ran = RunRanks(options, ranks);
    EXPECT_TRUE(ran.outcome) << ran.outcome.error().ToString();
    EXPECT_LT(ran.losses.at(12), ran.losses.at(1));
    return ran.losses.at(1);
  };
  const double plain = first_loss(false, {}, 1);
  EXPECT_NEAR(first_loss(true, {}, 1), plain, 2e-6 * plain);
  EXPECT_NEAR(first_loss(true, {.data = 2, .shard = 2, .tensor = 2, .zero = 3}, 4), plain, 2e-6 * plain);
  EXPECT_NEAR(first_loss(true, {.data = 2, .shard = 2, .pipeline = 2, .zero = 1}, 4), plain, 2e-6 * plain);
}

TEST_F(LoraTest, RefusesCheckpointsOfAnotherAdapterOrModel) {
  const std::string base = Base("one", 1), other = Base("other", 2);
  const Options options = Adapting(base, "strict");
  ASSERT_TRUE(Run(options, 4).outcome);
  const auto refusal = [&](const std::function<void(Options&)>& change) {
    Options changed = options;
    change(changed);
    const Ran ran = Run(changed);
    if (ran.outcome) return std::string("accepted");
    EXPECT_EQ(ran.outcome.error().code(), Code::kPreconditionFailed) << ran.outcome.error().ToString();
    return std::string(ran.outcome.error().message());
  };
  using testing::HasSubstr;
  EXPECT_THAT(refusal([](Options& o) { o.lora->rank = 8; }), HasSubstr("has adapters with r 4, this run wants 8"));
  EXPECT_THAT(refusal([](Options& o) { o.lora->alpha = 1; }), HasSubstr("lora_alpha 16.0, this run wants 1.0"));
  EXPECT_THAT(refusal([](Options& o) { o.lora->dora = true; }), HasSubstr("use_dora unset, this run wants true"));
  EXPECT_THAT(refusal([](Options& o) { o.lora.reset(); }), HasSubstr("was made with lora"));
  EXPECT_THAT(refusal([&](Options& o) { o.model_url = other; }), HasSubstr("adapts a model with other weights"));
  Options plain = options;
  plain.lora.reset();
  plain.checkpoint.url = CheckpointUrl("plain");
  ASSERT_TRUE(Run(plain, 4).outcome);
  EXPECT_THAT(refusal([&](Options& o) { o.checkpoint.url = plain.checkpoint.url; }),
              HasSubstr("was made without lora"));
  EXPECT_TRUE(Run(options).outcome) << "refusals change nothing";
}

/// Over a base of few bits.
class QuantizedBaseTest : public LoraTest, public testing::WithParamInterface<engine::Quantization> {
 protected:
  Options Adapting(const std::string& base, std::string_view run) const {
    Options options = LoraTest::Adapting(base, fmt::format("{}-{}", run, QuantizationName(GetParam())));
    options.base_quantization = GetParam();
    options.quantized_folder = folder_->path() / "quantized";
    return options;
  }
};
INSTANTIATE_TEST_SUITE_P(Kinds, QuantizedBaseTest,
                         testing::Values(engine::Quantization::kNf4, engine::Quantization::kInt8,
                                         engine::Quantization::kFp8),
                         [](const auto& kind) { return std::string(QuantizationName(kind.param)); });

TEST_P(QuantizedBaseTest, LearnsInEveryLayoutAsOnOneRank) {
  const std::string base = Base("few-base", 1);
  const Ran plain = Run(LoraTest::Adapting(base, fmt::format("few-plain-{}", QuantizationName(GetParam()))));
  const Ran one = Run(Adapting(base, "few-one"));
  ASSERT_TRUE(one.outcome) << one.outcome.error().ToString();
  EXPECT_LT(one.losses.at(12), one.losses.at(1));
  EXPECT_NE(one.losses.at(1), plain.losses.at(1)) << "the base has other weights";
  EXPECT_NEAR(one.losses.at(1), plain.losses.at(1), 0.05 * plain.losses.at(1));
  Options with_magnitudes = Adapting(base, "few-dora");
  with_magnitudes.lora->dora = true;
  const Ran dora = Run(with_magnitudes);
  ASSERT_TRUE(dora.outcome) << dora.outcome.error().ToString();
  EXPECT_LT(dora.losses.at(12), dora.losses.at(1));
  const std::pair<int, engine::ParallelOptions> layouts[] = {
      {2, {.tensor = 2, .sequence = true}},
      {2, {.data = 2, .shard = 2, .zero = 3}},
      {4, {.tensor = 2, .pipeline = 2, .recompute = engine::Recompute::kFull}}};
  for (const bool has_magnitudes : {false, true}) {
    for (const auto& [ranks, parallel] : layouts) {
      Options divided = Adapting(base, fmt::format("few-{}-{}-{}", ranks, parallel.zero, has_magnitudes));
      divided.parallel = parallel;
      divided.lora->dora = has_magnitudes;
      const Ran ran = RunRanks(divided, ranks);
      ASSERT_TRUE(ran.outcome) << ran.outcome.error().ToString();
      for (const auto& [step, loss] : (has_magnitudes ? dora : one).losses) {
        EXPECT_NEAR(ran.losses.at(step), loss, 2e-6 * loss) << step;
      }
    }
  }
}

TEST_P(QuantizedBaseTest, AStoppedRunGoesOnBitForBit) {
  const std::string base = Base("few-base", 1);
  const Options whole = Adapting(base, "few-whole"), parts = Adapting(base, "few-parts");
  const Ran all = Run(whole);
  ASSERT_TRUE(Run(parts, 5).outcome);
  const Ran rest = Run(parts);
  ASSERT_TRUE(rest.outcome) << rest.outcome.error().ToString();
  for (const auto& [step, loss] : rest.losses) EXPECT_EQ(loss, all.losses.at(step)) << step;
  EXPECT_EQ(Tensors(whole.checkpoint.url, 12), Tensors(parts.checkpoint.url, 12));
  Options in_full = parts;
  in_full.base_quantization.reset();
  const Ran refused = Run(in_full);
  ASSERT_FALSE(refused.outcome);
  EXPECT_THAT(refused.outcome.error().message(), testing::HasSubstr("adapts a model with other weights"));
}

TEST_F(LoraTest, ATargetWithoutALayerIsNamed) {
  Options options = Adapting(Base("aimed", 1), "missed");
  options.lora->targets = {"q_proj", "query"};
  const Ran ran = Run(options);
  ASSERT_FALSE(ran.outcome);
  EXPECT_EQ(
      ran.outcome.error().message(),
      "lora.targets: no linear layer of the model is called \"query\"; write names such as q_proj, or all-linear");
}

}  // namespace
}  // namespace millrace::train
