// Every way to divide a run among ranks learns what one rank learns, and any goes on from the checkpoint of any other.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "millrace/engine/parallel/staged.h"
#include "millrace/plan/search.h"
#include "millrace/train/auto_layout.h"
#include "millrace/train/testing/layout_runs.h"

namespace millrace::train {
namespace {

TEST_F(LayoutsTest, LearnWhatOneRankLearns) {
  std::map<Model, Ran> one;
  const auto transposed_of = [&](const std::string& url) -> Json {
    auto connection = object::OpenConnection({}).value();
    const Json meta = checkpoint::Reader::Open(*connection, url, kSteps).value()->manifest().meta;
    const Json* names = JsonFind(meta, checkpoint::kMetaTransposed);
    return names == nullptr ? Json() : *names;
  };
  const auto url_of = [&](const Model& model) {
    return CheckpointUrl(fmt::format("one {}{}", model.first, model.second ? " bf16" : ""));
  };
  for (int i = 0; i < 2 * kFamilies; ++i) {
    const Model model{i / 2, i % 2 == 1};
    Options options = OptionsOf(model.first, 2, model.second);
    options.checkpoint.url = url_of(model);
    Ran& ran = one[model] = Run(options);
    ASSERT_TRUE(ran.outcome) << ran.outcome.error().ToString();
    EXPECT_LT(ran.losses.at(kSteps), ran.losses.at(1));
  }
  const std::vector<Choices> layouts = PairwiseLayouts();
  Random random(17);
  for (std::size_t i = 0; i < layouts.size(); ++i) {
    const Choices& choices = layouts[i];
    const std::string what = choices.ToText();
    SCOPED_TRACE(what);
    const Model model{choices[Choices::kFamily], choices.bf16()};
    const std::map<std::uint64_t, double>& want = one[model].losses;
    const double tolerance = choices.bf16() ? kBf16Losses : 2e-6;
    Options options = OptionsOf(choices);
    options.checkpoint.url = CheckpointUrl(what);
    const Ran whole = RunRanks(options, choices.ranks());
    ASSERT_TRUE(whole.outcome) << whole.outcome.error().ToString();
    ASSERT_EQ(whole.losses.size(), kSteps);
    for (const auto& [step, loss] : whole.losses) EXPECT_NEAR(loss, want.at(step), tolerance * loss) << "step " << step;
    ExpectSameWeights(options.checkpoint.url, url_of(model), model, what);
    EXPECT_EQ(transposed_of(options.checkpoint.url), transposed_of(url_of(model)));

    // Stopped at some step, it goes on to the same bits in the same layout.
    options.checkpoint.url = CheckpointUrl(what + "stopped");
    ASSERT_TRUE(RunRanks(options, choices.ranks(), 1 + random.Below(kSteps - 2)).outcome);
    const Ran rest = RunRanks(options, choices.ranks());
    ASSERT_TRUE(rest.outcome) << rest.outcome.error().ToString();
    EXPECT_LT(rest.losses.size(), kSteps);
    for (const auto& [step, loss] : rest.losses) EXPECT_EQ(loss, whole.losses.at(step)) << "step " << step;
    EXPECT_EQ(Tensors(options.checkpoint.url, kSteps), Tensors(CheckpointUrl(what), kSteps));
  }
}

TEST_F(LayoutsTest, GoOnFromEachOthersCheckpoints) {
  std::vector<Choices> layouts = PairwiseLayouts();
  Random random(23);
  for (const auto& [family, bf16] : {Model{kLlama, false}, Model{kLlama, true}, Model{kQwen3, false},
                                     Model{kGpt2, false}, Model{kGptJ, false}, Model{kBert, false}}) {
    std::vector<Choices> mine;
    for (Choices choices : layouts) {
      choices.at[Choices::kFamily] = family;
      choices.at[Choices::kPrecision] = bf16 ? 1 : 0;
      mine.push_back(choices);
    }
    const double tolerance = bf16 ? kBf16Losses : 4e-6;
    const Ran one = Run(OptionsOf(family, 2, bf16));
    ASSERT_TRUE(one.outcome) << one.outcome.error().ToString();
    // One run that changes its layout every few steps.
    const std::string url = CheckpointUrl(fmt::format("changing {}{}", family, bf16 ? " bf16" : ""));
    std::string what;
    std::uint64_t done = 0;
    while (done < kSteps) {
      const Choices& choices = mine[random.Below(mine.size())];
      what += fmt::format("from step {}: {}\n", done, choices.ToText());
      SCOPED_TRACE(what);
      Options options = OptionsOf(choices);
      options.checkpoint.url = url;
      options.steps_this_run = 3;
      const Ran part = RunRanks(options, choices.ranks());
      ASSERT_TRUE(part.outcome) << part.outcome.error().ToString();
      for (const auto& [step, loss] : part.losses) EXPECT_NEAR(loss, one.losses.at(step), tolerance * loss) << step;
      ASSERT_GT(part.outcome->step, done);
      done = part.outcome->step;
    }
  }
}

/// As ranks that share a GPU exchange their tensors: by copies of them.
TEST_F(LayoutsTest, LearnTheSameBitsFromCopies) {
  struct Layout {
    int ranks;
    engine::ParallelOptions parallel;
  };
  for (const Layout& layout :
       {Layout{4, {.shard = 2, .tensor = 2, .sequence = true, .zero = 2}},
        Layout{4, {.shard = 2, .pipeline = 2, .schedule = PipelineSchedule::kZeroBubble, .zero = 3}},
        Layout{2, {.reduce_in_bf16 = true}}}) {
    Options options = OptionsOf(kLlama);
    options.parallel = layout.parallel;
    const Ran plain = RunRanks(options, layout.ranks);
    ASSERT_TRUE(plain.outcome) << plain.outcome.error().ToString();
    wrap_ = [](int, std::unique_ptr<engine::Collective> world) {
      return engine::StageThroughHost(std::move(world), at::kCPU, [](const collectives::Elements&) { return true; });
    };
    const Ran copies = RunRanks(options, layout.ranks);
    wrap_ = {};
    ASSERT_TRUE(copies.outcome) << copies.outcome.error().ToString();
    EXPECT_EQ(copies.losses, plain.losses);
    EXPECT_EQ(copies.norms, plain.norms);
  }
}

/// Four tensor ranks share two key-value heads. A run goes from them to other layouts and back.
TEST_F(LayoutsTest, ShareKeyValueHeads) {
  for (const bool lamb : {false, true}) {
    const auto options_of = [&](const engine::ParallelOptions& parallel) {
      Options options = OptionsOf(kQwen3);
      if (lamb) options.optimizer.method = engine::LambOptions{.eps = 1e-5};
      options.parallel = parallel;
      return options;
    };
    const std::string one_url = CheckpointUrl(fmt::format("one {}", lamb));
    Options alone = options_of({});
    alone.checkpoint.url = one_url;
    const Ran one = Run(alone);
    ASSERT_TRUE(one.outcome) << one.outcome.error().ToString();
    struct Part {
      int ranks;
      engine::ParallelOptions parallel;
    };
    const std::vector<Part> parts = {{4, {.tensor = 4}},
                                     {8, {.data = 2, .shard = 2, .tensor = 4, .sequence = true, .zero = 3}},
                                     {2, {.tensor = 2}},
                                     {8, {.data = 2, .shard = 2, .tensor = 4, .zero = 1}},
                                     {8, {.tensor = 4, .pipeline = 2}},
                                     {1, {}},
                                     {4, {.tensor = 4, .sequence = true}}};
    const std::string url = CheckpointUrl(fmt::format("shared {}", lamb));
    std::uint64_t done = 0;
    for (const Part& part : parts) {
      SCOPED_TRACE(fmt::format("lamb {}, from step {} on {} ranks", lamb, done, part.ranks));
      Options options = options_of(part.parallel);
      options.checkpoint.url = url;
      options.steps_this_run = 3;
      const Ran ran = RunRanks(options, part.ranks);
      ASSERT_TRUE(ran.outcome) << ran.outcome.error().ToString();
      for (const auto& [step, loss] : ran.losses) EXPECT_NEAR(loss, one.losses.at(step), 2e-6 * loss) << step;
      ASSERT_GT(ran.outcome->step, done);
      done = ran.outcome->step;
    }
    ASSERT_EQ(done, kSteps);
    ExpectSameWeights(url, one_url, {kQwen3, false}, "shared heads: ");
  }
}

TEST_F(LayoutsTest, Bf16ReductionIsClose) {
  for (const engine::ParallelOptions& parallel :
       {engine::ParallelOptions{}, {.zero = 1}, {.zero = 2}, {.zero = 3}, {.shard = 2, .zero = 2}, {.tensor = 2}}) {
    Options options = OptionsOf(kLlama);
    options.parallel = parallel;
    const std::string what =
        fmt::format("reduce zero {} shard {} tensor {}", parallel.zero, parallel.shard, parallel.tensor);
    SCOPED_TRACE(what);
    const Ran exact = RunRanks(options, 4);
    ASSERT_TRUE(exact.outcome) << exact.outcome.error().ToString();
    options.parallel.reduce_in_bf16 = true;
    options.checkpoint.url = CheckpointUrl(what);
    const Ran close = RunRanks(options, 4);
    ASSERT_TRUE(close.outcome) << close.outcome.error().ToString();
    for (const auto& [step, loss] : close.losses) EXPECT_NEAR(loss, exact.losses.at(step), 2e-3 * loss) << step;
    EXPECT_NE(close.losses, exact.losses);

    options.checkpoint.url = CheckpointUrl(what + "stopped");
    ASSERT_TRUE(RunRanks(options, 4, 7).outcome);
    const Ran rest = RunRanks(options, 4);
    ASSERT_TRUE(rest.outcome) << rest.outcome.error().ToString();
    EXPECT_LT(rest.losses.size(), kSteps);
    for (const auto& [step, loss] : rest.losses) EXPECT_EQ(loss, close.losses.at(step)) << step;
    EXPECT_EQ(Tensors(options.checkpoint.url, kSteps), Tensors(CheckpointUrl(what), kSteps));
  }
}

TEST_F(LayoutsTest, OverlapChangesNoBits) {
  for (const engine::ParallelOptions& parallel :
       {engine::ParallelOptions{}, {.zero = 1}, {.shard = 2, .zero = 1}, {.pipeline = 2}}) {
    Options options = OptionsOf(kLlama);
    options.steps = 4;
    options.parallel = parallel;
    const Ran beside = RunRanks(options, 4);
    ASSERT_TRUE(beside.outcome) << beside.outcome.error().ToString();
    options.parallel.overlap = false;
    const Ran behind = RunRanks(options, 4);
    ASSERT_TRUE(behind.outcome) << behind.outcome.error().ToString();
    EXPECT_EQ(behind.losses, beside.losses);
  }
}

TEST_F(LayoutsTest, ThePlannerMustKnowTheGpus) {
  Options options = OptionsOf(kLlama);
  options.auto_memory_weight = 0;
  options.device = at::Device(at::kCUDA, 0);
  const auto world = std::move(collectives::ConnectThreads(1)[0]);
  const auto refused = ChooseParallel(*world, options, {});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::kInvalidArgument);
  EXPECT_THAT(refused.error().message(), testing::HasSubstr("run.machine"));
}

TEST_F(LayoutsTest, LayoutsThatThePlannerChoosesLearnTheSame) {
  constexpr int kRanks = 4;
  Options options = OptionsOf(kLlama);
  options.model_config["vocab_size"] = 300;
  const Ran one = Run(options);
  ASSERT_TRUE(one.outcome) << one.outcome.error().ToString();
  options.machine = "p4d.24xlarge";  // its links are fast, so that many layouts are worth their exchanges
  options.setup.ranks_per_machine = kRanks;
  const plan::TrainingSetup setup = SetupOf(options, kRanks);
  const plan::Machine machine = plan::Machine::Find(options.machine).value();
  std::vector<engine::ParallelOptions> chosen;
  for (const double memory_weight : {0.0, 1.0}) {
    options.auto_memory_weight = memory_weight;
    const Ran ran = RunRanks(options, kRanks);
    ASSERT_TRUE(ran.outcome) << ran.outcome.error().ToString();
    ASSERT_EQ(ran.losses.size(), kSteps);
    for (const auto& [step, loss] : ran.losses) EXPECT_NEAR(loss, one.losses.at(step), 2e-6 * loss) << "step " << step;
    chosen.push_back(plan::ChooseLayout(setup, machine, {.memory_weight = memory_weight})->options);
    EXPECT_EQ(ran.plan.parallel, chosen.back());
  }
  EXPECT_NE(chosen[0], chosen[1]) << "the fastest layout needs more than the least memory";
}

TEST_F(LayoutsTest, PlacementsLearnTheSame) {
  const Ran one = Run(OptionsOf(kLlama, 1));
  ASSERT_TRUE(one.outcome) << one.outcome.error().ToString();
  for (const char* placement : {"cluster", "spread", "DTP", "PDT"}) {
    SCOPED_TRACE(placement);
    Options options = OptionsOf(kLlama, 1);
    options.parallel = {.data = 2, .shard = 2, .tensor = 2, .pipeline = 2, .zero = 2, .placement = placement};
    const Ran ran = RunRanks(options, 8);
    ASSERT_TRUE(ran.outcome) << ran.outcome.error().ToString();
    ASSERT_EQ(ran.losses.size(), kSteps);
    for (const auto& [step, loss] : ran.losses) EXPECT_NEAR(loss, one.losses.at(step), 2e-6 * loss) << "step " << step;
  }
}

TEST_F(LayoutsTest, AreRefusedWithTheArithmetic) {
  struct Refusal {
    int ranks;
    engine::ParallelOptions parallel;
    std::string text;
  };
  for (const Refusal& refusal :
       {Refusal{4, {.tensor = 3}, "4 ranks are not a multiple of train.parallel.tensor 3"},
        Refusal{3, {.tensor = 3}, "4 attention heads do not divide among 3"},
        Refusal{4, {.pipeline = 3}, "not a multiple of train.parallel.pipeline 3"},
        Refusal{8, {.pipeline = 8}, "4 blocks, fewer than the 8 stages"},
        Refusal{4, {.data = 4, .tensor = 2}, "train.parallel.data is 4, but 4 ranks / (tensor 2 × pipeline 1) are 2"},
        Refusal{4, {.shard = 3, .zero = 1}, "4 data-parallel ranks are not a multiple of train.parallel.shard 3"},
        Refusal{2, {.shard = 2}, "zero 0 divides nothing"},
        Refusal{2, {.zero = 3, .overlap = false}, "train.parallel.overlap is false, but zero 3"},
        Refusal{2, {.pipeline = 2, .virtual_stages = 2}, "schedule interleaved takes 2 or more"},
        Refusal{2, {.placement = "DDT"}, "DDT"}}) {
    Options options = OptionsOf(kLlama);
    options.parallel = refusal.parallel;
    const Ran ran = RunRanks(options, refusal.ranks);
    ASSERT_FALSE(ran.outcome) << refusal.text;
    EXPECT_THAT(ran.outcome.error().ToString(), testing::HasSubstr(refusal.text));
  }
}

}  // namespace
}  // namespace millrace::train
