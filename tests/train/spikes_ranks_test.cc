// Runs that meet a batch whose loss and gradients are not numbers: on any ranks they skip the step or go back, and a
// run that dies meanwhile ends with the same bits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "millrace/checkpoint/save/writer.h"
#include "millrace/collectives/testing/faulty.h"
#include "millrace/tokenizer/open/open.h"
#include "millrace/train/ranks/rank_group.h"
#include "millrace/train/state/run_state.h"
#include "millrace/train/testing/train_runs.h"

namespace millrace::train {
namespace {

using engine::ParallelOptions;
using engine::PipelineSchedule;
using Action = SpikeOptions::Action;
using testing::HasSubstr;

struct SpikyLayout {
  int ranks;
  ParallelOptions parallel;
};

/// In a pipeline only the last stage sees the loss.
const SpikyLayout kSpikyLayouts[] = {{2, {}},
                                     {2, {.zero = 1}},
                                     {2, {.zero = 3}},
                                     {2, {.tensor = 2, .sequence = true}},
                                     {2, {.pipeline = 2, .schedule = PipelineSchedule::kZeroBubble}},
                                     {4, {.pipeline = 2, .zero = 2}}};

class SpikesRanks : public TrainTest {
 protected:
  /// Saves a model of which one token's embedding is broken. Only one text of the data has this token.
  std::string SaveBrokenModel(std::string_view run, float value) {
    const std::string url = CheckpointUrl(fmt::format("{} broken {}", run, value));
    Options base = Tiny("base");
    base.steps = 1;
    base.checkpoint.url = CheckpointUrl(fmt::format("{} base {}", run, value));
    EXPECT_TRUE(Run(base).outcome);
    auto connection = object::OpenConnection({}).value();
    const auto reader = checkpoint::Reader::Open(*connection, base.checkpoint.url).value();
    auto tensors = Tensors(base.checkpoint.url, 1);
    const auto tokenizer = tokenizer::OpenTokenizer(*connection, base.tokenizer_url, {}).value();
    std::vector<tokenizer::TokenId> ids;
    EXPECT_TRUE(tokenizer->Encode("~", ids));
    std::string& embedding = tensors.at("model/model.embed_tokens.weight");
    constexpr std::size_t kHidden = 32;
    std::memcpy(embedding.data() + static_cast<std::size_t>(ids.back()) * kHidden * sizeof value, &value, sizeof value);
    std::vector<checkpoint::SaveSlice> slices;
    for (const auto& [name, bytes] : tensors) {
      slices.push_back({.name = name, .meta = reader->manifest().tensors.at(name), .bytes = AsBytes(bytes)});
    }
    MemoryBudget budget(8 * kMiB);
    const auto group = MakeRankGroup(std::move(collectives::ConnectThreads(1)[0]));
    const auto writer = checkpoint::Writer::Open(*connection, group, budget, {.url = url}).value();
    EXPECT_TRUE(writer->Save(1, slices, reader->MetaText()));
    EXPECT_TRUE(writer->Wait());
    return url;
  }

  Options Spiky(std::string_view run, Action action, float value = std::numeric_limits<float>::quiet_NaN()) {
    Options options = Tiny(run);
    const std::string lines = Corpus(17) + DumpJson({{"text", "~~~~ ~~~~ ~~~~"}}) + "\n" + Corpus(60);
    EXPECT_TRUE(WriteFileAtomic(folder_->path() / "spiky.json", AsBytes(lines)));
    options.data.sources = {{.url = (folder_->path() / "spiky.json").native(), .format = "jsonl"}};
    options.data.shuffle_window = 0;
    options.data.threads = 1;
    std::string& url = broken_[std::isnan(value)];
    if (url.empty()) url = SaveBrokenModel(run, value);
    options.model_url = url;
    options.micro_batch = 1;
    options.steps = 14;
    options.checkpoint.every_steps = 4;
    options.spikes = {.action = action, .sigma = 1000, .window = 8};
    return options;
  }

  RunState StateAt(const std::string& url, std::uint64_t step) {
    auto connection = object::OpenConnection({}).value();
    const auto reader = checkpoint::Reader::Open(*connection, url, step).value();
    return RunState::FromJson(reader->manifest().meta, url).value();
  }

  std::string broken_[2];  ///< the models with an infinite and with a NaN value
};

TEST_F(SpikesRanks, StepsThatAreNotNumbersAreSkipped) {
  for (const float value : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    Options options = Spiky("skip", Action::kSkipStep, value);
    options.checkpoint.every_steps = 1;
    options.checkpoint.retention.keep_last = 100;
    options.checkpoint.url = CheckpointUrl(fmt::format("skip {}", value));
    const Ran one = Run(options);
    ASSERT_TRUE(one.outcome) << one.outcome.error().ToString();
    ASSERT_EQ(one.spikes.size(), 1u);
    const std::uint64_t spike = one.spikes.begin()->first;
    EXPECT_GT(spike, 4u);
    for (const auto& [step, loss] : one.losses) EXPECT_EQ(std::isfinite(loss), step != spike) << step;
    auto connection = object::OpenConnection({}).value();
    const auto saved = checkpoint::Reader::Open(*connection, options.checkpoint.url, spike).value();
    EXPECT_EQ(saved->manifest().metrics.at("loss"), one.losses.at(spike - 1)) << "of the weights that are saved";
    EXPECT_EQ(StateAt(options.checkpoint.url, spike).optimizer_steps, static_cast<std::int64_t>(spike) - 1);

    options.checkpoint.url.clear();
    for (const SpikyLayout& layout : kSpikyLayouts) {
      options.parallel = layout.parallel;
      const Ran ran = RunRanks(options, layout.ranks);
      ASSERT_TRUE(ran.outcome) << ran.outcome.error().ToString();
      EXPECT_EQ(ran.spikes, one.spikes);
      for (const auto& [step, loss] : ran.losses) {
        if (step == spike) continue;
        EXPECT_NEAR(loss, one.losses.at(step), 1e-5 * loss) << layout.ranks << " " << step;
      }
    }
  }
}

/// The run is lost at the first operation after it went back, and in the step after.
TEST_F(SpikesRanks, ARunThatDiesAfterItWentBackEndsWithTheSameBits) {
  std::map<std::uint64_t, double> one;
  for (const SpikyLayout& layout : {SpikyLayout{1, {}}, SpikyLayout{2, {}}, SpikyLayout{2, {.pipeline = 2}},
                                    SpikyLayout{2, {.zero = 3}}, SpikyLayout{4, {.pipeline = 2, .zero = 1}}}) {
    const std::string name = fmt::format("back {} {} {}", layout.ranks, layout.parallel.pipeline, layout.parallel.zero);
    SCOPED_TRACE(name);
    Options options = Spiky(name, Action::kRollBack);
    options.parallel = layout.parallel;
    options.checkpoint.url = CheckpointUrl(name);
    const Ran whole = RunRanks(options, layout.ranks);
    ASSERT_TRUE(whole.outcome) << whole.outcome.error().ToString();
    ASSERT_EQ(whole.spikes.size(), 1u);
    const auto [spike, back] = *whole.spikes.begin();
    ASSERT_TRUE(back);
    EXPECT_EQ(*back, (spike - 1) / 4 * 4);
    EXPECT_GT(*back, 0u);
    // The samples of the steps that were undone are left out.
    EXPECT_EQ(StateAt(options.checkpoint.url, 14).data.samples, 8 * (14 + spike - *back));
    EXPECT_EQ(StateAt(options.checkpoint.url, 14).optimizer_steps, 14);
    if (one.empty()) one = whole.losses;
    for (const auto& [step, loss] : whole.losses) {
      EXPECT_NEAR(loss, one.at(step), 1e-5 * loss) << step;
    }
    if (layout.ranks == 1) continue;  // nothing is exchanged at which it could be lost

    // In the step after the return, or at its first operation.
    const std::uint64_t operation = layout.parallel.pipeline > 1 ? 5 : 0;
    options.checkpoint.url = CheckpointUrl(name + " lost");
    std::stop_source went_back;
    on_step_ = [&](const StepReport& report) {
      if (report.went_back) went_back.request_stop();
    };
    wrap_ = [&](int rank, std::unique_ptr<engine::Collective> world) {
      if (rank != 0) return world;
      return collectives::MakeFaulty(std::move(world), {.counted_from = went_back.get_token(), .lost_at = operation});
    };
    const Ran lost = RunRanks(options, layout.ranks);
    ASSERT_FALSE(lost.outcome);
    EXPECT_EQ(lost.spikes, whole.spikes);
    wrap_ = nullptr;
    on_step_ = nullptr;
    const Ran rest = RunRanks(options, layout.ranks);
    ASSERT_TRUE(rest.outcome) << rest.outcome.error().ToString();
    EXPECT_EQ(rest.plan.resumed_from, *back);
    EXPECT_EQ(rest.spikes, whole.spikes) << "it meets the jump again, and goes back again";
    for (const auto& [step, loss] : rest.losses) EXPECT_EQ(loss, whole.losses.at(step)) << step;
    EXPECT_EQ(Tensors(options.checkpoint.url, 14), Tensors(CheckpointUrl(name), 14));
    EXPECT_EQ(StateAt(options.checkpoint.url, 14).data.samples, StateAt(CheckpointUrl(name), 14).data.samples);
  }
}

/// Another checkpoint is committed between the return and the stop.
TEST_F(SpikesRanks, ARunThatWentBackIsStoppedAndGoesOn) {
  Options options = Spiky("stopped", Action::kRollBack);
  options.checkpoint.url = CheckpointUrl("back whole");
  const Ran whole = RunRanks(options, 2);
  ASSERT_TRUE(whole.outcome) << whole.outcome.error().ToString();
  options.checkpoint.url = CheckpointUrl("back stopped");
  ASSERT_TRUE(RunRanks(options, 2, whole.spikes.begin()->first).outcome);
  const Ran rest = RunRanks(options, 2);
  ASSERT_TRUE(rest.outcome) << rest.outcome.error().ToString();
  EXPECT_EQ(rest.plan.resumed_from, *whole.spikes.begin()->second + 1) << "a stop ends the step under way";
  EXPECT_TRUE(rest.spikes.empty());
  for (const auto& [step, loss] : rest.losses) EXPECT_EQ(loss, whole.losses.at(step)) << step;
  EXPECT_EQ(Tensors(options.checkpoint.url, 14), Tensors(CheckpointUrl("back whole"), 14));
}

TEST_F(SpikesRanks, WeightsThatAreBeyondUseEndTheRun) {
  Options options = Spiky("hopeless", Action::kSkipStep);
  options.schedule = {.shape = engine::Schedule::Shape::kConstant, .lr = 1e30};
  for (const SpikyLayout& layout : {SpikyLayout{1, {}}, SpikyLayout{2, {.pipeline = 2}}}) {
    options.parallel = layout.parallel;
    const Ran ran = RunRanks(options, layout.ranks);
    ASSERT_FALSE(ran.outcome);
    EXPECT_THAT(ran.outcome.error().ToString(), HasSubstr("in 9 steps in a row"));
    EXPECT_LT(ran.losses.size(), 14u);
  }
  // Its only checkpoint has such weights.
  options.spikes.action = Action::kRollBack;
  options.checkpoint.every_steps = 1;
  options.checkpoint.url = CheckpointUrl("hopeless");
  const Ran ran = RunRanks(options, 2);
  ASSERT_FALSE(ran.outcome);
  EXPECT_THAT(ran.outcome.error().ToString(),
              HasSubstr("after each of 8 attempts to go on from the checkpoint of step 1"));
}

}  // namespace
}  // namespace millrace::train
