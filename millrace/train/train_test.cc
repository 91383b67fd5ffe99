// Whole runs of a tiny model over a folder: what resuming, stopping, ranks and accumulation must not change.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <latch>
#include <map>
#include <thread>

#include "millrace/base/files/files.h"
#include "millrace/checkpoint/read/reader.h"
#include "millrace/collectives/connect.h"
#include "millrace/data/batch/sequence_row.h"
#include "millrace/data/dataset.h"
#include "millrace/engine/config/families.h"
#include "millrace/engine/models/make_model.h"
#include "millrace/history/run_history.h"
#include "millrace/http/server/server.h"
#include "millrace/object/open/open.h"
#include "millrace/tokenizer/formats/load.h"
#include "millrace/train/reporting/heartbeat.h"
#include "millrace/train/reporting/step_metrics.h"
#include "millrace/train/state/run_state.h"
#include "millrace/train/testing/train_runs.h"
#include "millrace/train/trainer.h"

namespace millrace::train {
namespace {

using testing::HasSubstr;

TEST_F(TrainTest, LearnsAndReports) {
  Options options = Tiny("learns");
  options.steps = 30;
  options.heartbeat_file = folder_->path() / "beat";
  options.reports.tensorboard = (folder_->path() / "tb").native();
  options.shown_job = "name: shown";
  const Ran ran = Run(options);
  ASSERT_TRUE(ran.outcome) << ran.outcome.error().ToString();
  EXPECT_EQ(ran.outcome->step, 30u);
  EXPECT_FALSE(ran.outcome->stopped);
  EXPECT_NEAR(ran.losses.at(1), std::log(300), 0.1);
  EXPECT_LT(ran.losses.at(30), 4);
  EXPECT_EQ(ReadFile(options.heartbeat_file).value(), "30\n");
  EXPECT_EQ(ran.plan.steps, 30u);
  EXPECT_EQ(ran.plan.accumulation, 4u);
  EXPECT_EQ(ran.plan.steps_per_epoch, ran.plan.samples_per_epoch / 8);
  const auto event_file = std::filesystem::directory_iterator(folder_->path() / "tb")->path();
  const std::string events = ReadFile(event_file).value();
  for (const char* shown :
       {"```yaml\nname: shown\n```", "_hparams_/session_start_info", "_hparams_/session_end_info"}) {
    EXPECT_NE(events.find(shown), std::string::npos) << shown;
  }
}

TEST_F(TrainTest, AStepUnderWayBeatsOnceASecondAtMost) {
  const auto file = folder_->path() / "beat-in-step";
  FakeClock clock;
  Heartbeat heartbeat = *Heartbeat::Open(file);
  const auto beats = [&] {  // and forgets it
    const std::string text = ReadFile(file).value();
    std::filesystem::resize_file(file, 0);
    return text;
  };
  ASSERT_TRUE(heartbeat.Beat(std::nullopt));
  EXPECT_EQ(beats(), "\n") << "no step is known yet";
  heartbeat.BeatInStep(7, clock);
  EXPECT_EQ(beats(), "7\n");
  clock.Advance(std::chrono::milliseconds(999));
  heartbeat.BeatInStep(7, clock);
  EXPECT_EQ(beats(), "");
  clock.Advance(std::chrono::milliseconds(1));
  heartbeat.BeatInStep(7, clock);
  EXPECT_EQ(beats(), "7\n");
}

TEST_F(TrainTest, EvaluatesTheHeldOutPartWithoutChangingTheRun) {
  Options options = Tiny("not-evaluated");
  options.data.split.held_out = 0.2;
  const Ran plain = Run(options);
  ASSERT_TRUE(plain.outcome) << plain.outcome.error().ToString();
  options.checkpoint.url = CheckpointUrl("evaluated");
  options.eval.every_steps = 5;
  options.eval.samples = 12;
  options.reports.tensorboard = (folder_->path() / "eval-tb").native();
  options.eval.metrics.emplace_back("accuracy");
  const Ran ran = Run(options);
  ASSERT_TRUE(ran.outcome) << ran.outcome.error().ToString();
  EXPECT_EQ(ran.losses, plain.losses) << "bit for bit";
  ASSERT_THAT(Keys(ran.evals), testing::ElementsAre(5, 10, 12)) << "and at the end";
  EXPECT_EQ(ran.evals.at(5).samples, 12u);
  EXPECT_LT(ran.evals.at(12).loss, ran.evals.at(5).loss);
  EXPECT_NEAR(ran.evals.at(12).loss, ran.losses.at(12), 0.5);
  EXPECT_EQ(ran.evals.at(5).ToJson()["event"], "eval");
  EXPECT_NEAR(ran.evals.at(5).ToJson()["perplexity"].get<double>(), std::exp(ran.evals.at(5).loss), 1e-3);
  auto connection = object::OpenConnection({}).value();
  auto reader = checkpoint::Reader::Open(*connection, options.checkpoint.url, 12).value();
  EXPECT_EQ(reader->manifest().metrics.at("eval_loss"), ran.evals.at(12).loss);
  EXPECT_EQ(reader->manifest().metrics.at("eval_perplexity"), std::exp(ran.evals.at(12).loss));
  EXPECT_EQ(reader->manifest().metrics.at("eval_accuracy"), ran.evals.at(12).accuracy);

  // The same sequences on two ranks.
  options.checkpoint.url.clear();
  options.micro_batch = 1;
  const Ran two = RunRanks(options, 2);
  ASSERT_TRUE(two.outcome) << two.outcome.error().ToString();
  EXPECT_NEAR(two.evals.at(5).loss, ran.evals.at(5).loss, 1e-3);
  EXPECT_EQ(two.evals.at(5).samples, 12u);
}

TEST_F(TrainTest, EvaluatesSourcesOfTheirOwnWithoutChangingTheRun) {
  Options options = Tiny("not-evaluated");
  const Ran plain = Run(options);
  ASSERT_TRUE(plain.outcome) << plain.outcome.error().ToString();
  // The split of the training data does not hold for them.
  options.data.split.held_out = 0.2;
  const Ran split = Run(options);
  const std::filesystem::path test = folder_->path() / "test";
  std::filesystem::create_directory(test);
  ASSERT_TRUE(WriteFileAtomic(test / "records.json", AsBytes(Corpus(30))));
  options.eval.sources = {{.url = (test / "records.json").native(), .format = "jsonl"}};
  options.eval.every_steps = 6;
  std::optional<std::uint64_t> samples;
  for (const bool is_split : {false, true}) {
    options.data.split.held_out = is_split ? 0.2 : 0;
    const Ran ran = Run(options);
    ASSERT_TRUE(ran.outcome) << ran.outcome.error().ToString();
    EXPECT_EQ(ran.losses, is_split ? split.losses : plain.losses) << "bit for bit";
    ASSERT_THAT(Keys(ran.evals), testing::ElementsAre(6, 12));
    if (!samples) samples = ran.evals.at(6).samples;
    EXPECT_EQ(ran.evals.at(6).samples, *samples) << "all of their records";
    EXPECT_LT(ran.evals.at(12).loss, ran.evals.at(6).loss);
  }
  options.eval.samples = 8;
  const Ran two = RunRanks(options, 2);
  ASSERT_TRUE(two.outcome) << two.outcome.error().ToString();
  EXPECT_EQ(two.evals.at(6).samples, 8u);
}

TEST_F(TrainTest, TellsPrometheusWhatStepsWaitedFor) {
  StepMetrics metrics({.steps = 40, .resumed_from = 10}, 0);
  EXPECT_THAT(metrics.PrometheusText(), HasSubstr("\nmillrace_train_step 10\n"));
  StepReport report{.step = 11, .loss = 2.5, .tokens = 256, .step_s = 0.5, .data_wait_s = 0.25, .comm_wait_s = 0.125};
  report.data_wait_on_s[static_cast<std::size_t>(data::LoadStage::kTokenize)] = 0.25;
  metrics.OnStep(report);
  report.step = 12;
  metrics.OnStep(report);
  const std::string text = metrics.PrometheusText();
  for (const char* line : {"millrace_train_steps_planned 40", "millrace_train_step 12", "millrace_train_loss 2.5",
                           "millrace_train_tokens_total 512", "millrace_train_step_seconds_sum 1",
                           "millrace_train_wait_seconds_sum{for=\"data\"} 0.5",
                           "millrace_train_wait_seconds_sum{for=\"communication\"} 0.25",
                           "millrace_train_data_wait_seconds_sum{stage=\"tokenize\"} 0.5",
                           "millrace_train_data_wait_seconds_sum{stage=\"network\"} 0"}) {
    EXPECT_THAT(text, HasSubstr(fmt::format("\n{}\n", line)));
  }
}

TEST_F(TrainTest, KeepsAHistoryOfAllRanks) {
  Options options = Tiny("history");
  options.checkpoint.url = CheckpointUrl("history");
  const Ran plain = RunRanks(
      [&] {
        Options other = options;
        other.checkpoint.url = CheckpointUrl("no-history");
        return other;
      }(),
      2);
  options.history_file = folder_->path() / "history.json";
  options.rank_interval = std::chrono::nanoseconds(1);  // after each step
  const Ran first = RunRanks(options, 2, /*stop_after=*/5);
  ASSERT_TRUE(first.outcome) << first.outcome.error().ToString();
  const auto read = [&] {
    return history::RunHistory::Parse(ReadFile(options.history_file).value(), "the history").value();
  };
  history::RunHistory history = read();
  EXPECT_EQ(history.facts().name, "history");
  EXPECT_GT(history.facts().flops_rate, 0);
  const std::uint64_t stopped_at = history.points().back().last_step;
  EXPECT_EQ(stopped_at, first.outcome->step);
  ASSERT_EQ(history.ranks().size(), 2u);
  for (const history::RankFigures& rank : history.ranks()) {
    EXPECT_GT(rank.times.step, 0);
    EXPECT_GT(rank.memory_bytes, kMiB);
    EXPECT_EQ(rank.times.data_wait_on.size(), static_cast<std::size_t>(data::kLoadStages));
  }
  EXPECT_EQ(history.checkpoints().back().step, stopped_at);

  const Ran second = RunRanks(options, 2);
  ASSERT_TRUE(second.outcome) << second.outcome.error().ToString();
  history = read();
  ASSERT_EQ(history.starts().size(), 2u);
  EXPECT_EQ(history.starts().back().resumed_from, stopped_at);
  ASSERT_EQ(history.points().size(), 12u) << "the first run's too";
  for (const history::ChartPoint& point : history.points()) {
    EXPECT_NEAR(point.loss, plain.losses.at(point.last_step), 1e-8) << "what is reported changes no loss";
  }
  for (const auto& [step, loss] : second.losses) EXPECT_EQ(loss, plain.losses.at(step)) << "bit for bit";
}

TEST_F(TrainTest, TellsPrometheusOfRanksAndCheckpoints) {
  StepMetrics metrics({.steps = 40}, 1e6);
  metrics.OnStep({.step = 1, .tokens = 100, .step_s = 0.5, .flops_per_token = 1000});
  metrics.OnFigures({.step = 1, .tokens = 100, .step_s = 0.5, .flops_per_token = 1000});
  metrics.OnCheckpoint(checkpoint::SaveStats{.step = 1, .bytes = 77, .total = std::chrono::milliseconds(250)});
  metrics.OnCheckpoint(Fail(Code::kUnavailable, "the bucket is away"));
  std::vector<history::RankFigures> ranks(2, {.times = {.step = 0.5, .comm_wait = 0.25}, .memory_bytes = 9});
  ranks[1].straggles = true;
  metrics.OnRanks(ranks);
  metrics.OnRanks(ranks);
  const std::string text = metrics.PrometheusText();
  for (const char* line :
       {"millrace_train_model_flops_utilization 0.2", "millrace_train_checkpoint_step 1",
        "millrace_train_checkpoint_seconds 0.25", "millrace_train_checkpoints_total 1",
        "millrace_train_failed_checkpoints_total 1", "millrace_train_rank_step_seconds{rank=\"1\"} 0.5",
        "millrace_train_rank_wait_seconds{rank=\"0\",for=\"communication\"} 0.25",
        "millrace_train_rank_straggles{rank=\"1\"} 1"}) {
    EXPECT_THAT(text, HasSubstr(fmt::format("\n{}\n", line)));
  }
}

TEST_F(TrainTest, AnAddressInUseIsToldBeforeTheFirstStep) {
  auto taken = http::Server::Start({}, [](http::ServerRequest&, http::ServerResponse&) {}).value();
  Options options = Tiny("taken");
  options.reports.metrics_listen = taken->address();
  const Ran ran = Run(options);
  ASSERT_FALSE(ran.outcome);
  EXPECT_THAT(ran.outcome.error().ToString(), HasSubstr(taken->address()));
  EXPECT_TRUE(ran.losses.empty());
  options.reports.metrics_listen = "127.0.0.1:0";
  EXPECT_TRUE(Run(options).outcome);
}

TEST_F(TrainTest, AStoppedRunGoesOnBitForBit) {
  Options options = Tiny("whole");
  options.checkpoint.url = CheckpointUrl("whole");
  const Ran whole = Run(options);
  ASSERT_TRUE(whole.outcome) << whole.outcome.error().ToString();
  EXPECT_THAT(whole.saved, testing::ElementsAre(4, 8, 12));

  options.checkpoint.url = CheckpointUrl("parts");
  const Ran first = Run(options, 4);
  ASSERT_TRUE(first.outcome) << first.outcome.error().ToString();
  EXPECT_TRUE(first.outcome->stopped);
  EXPECT_EQ(first.outcome->step, 5u);  // the step under way when the stop came
  const Ran second = Run(options);
  ASSERT_TRUE(second.outcome) << second.outcome.error().ToString();
  EXPECT_EQ(second.plan.resumed_from, 5u);

  std::map<std::uint64_t, double> joined = first.losses;
  joined.insert(second.losses.begin(), second.losses.end());
  EXPECT_EQ(joined, whole.losses);
  EXPECT_EQ(Tensors(CheckpointUrl("parts"), 12), Tensors(CheckpointUrl("whole"), 12));

  const Ran third = Run(options);
  ASSERT_TRUE(third.outcome);
  EXPECT_EQ(third.outcome->step, 12u);
  EXPECT_TRUE(third.losses.empty()) << "a finished job has nothing left to do";
  EXPECT_FALSE(third.outcome->loss);
}

/// Models with dropout and with transposed weights: a run that stops goes on with the same losses, ranks change
/// nothing, and another run starts from its checkpoint.
TEST_F(TrainTest, OtherFamiliesResumeBitForBit) {
  for (const std::string_view family : {"gpt2", "gptj"}) {
    const std::string run(family);
    Options options = Tiny(run);
    options.model_config = {{"model_type", family}, {"n_embd", 32},      {"n_layer", 2},
                            {"n_head", 4},          {"n_positions", 32}, {"rotary_dim", 4},
                            {"embd_pdrop", 0.1},    {"attn_pdrop", 0.1}, {"resid_pdrop", 0.1}};
    const Ran whole = Run(options);
    ASSERT_TRUE(whole.outcome) << whole.outcome.error().ToString();
    EXPECT_LT(whole.losses.at(12), whole.losses.at(1));

    options.checkpoint.url = CheckpointUrl(run);
    const Ran first = Run(options, 5);
    ASSERT_TRUE(first.outcome) << first.outcome.error().ToString();
    const Ran second = Run(options);
    ASSERT_TRUE(second.outcome) << second.outcome.error().ToString();
    for (const auto& [step, loss] : second.losses) EXPECT_EQ(loss, whole.losses.at(step)) << run << " " << step;

    // Dropout depends on the sample, not on the rank or the micro-batch.
    Options spread = Tiny(run);
    spread.model_config = options.model_config;
    spread.micro_batch = 1;
    const Ran ranks = RunRanks(spread, 2);
    ASSERT_TRUE(ranks.outcome) << ranks.outcome.error().ToString();
    for (const auto& [step, loss] : ranks.losses) {
      EXPECT_NEAR(loss, whole.losses.at(step), 2e-6 * loss) << run << " " << step;
    }

    Options donated = Tiny(run + " donated");
    donated.model_url = options.checkpoint.url;
    donated.model_config = nullptr;
    donated.steps = 1;
    const Ran again = Run(donated);
    ASSERT_TRUE(again.outcome) << again.outcome.error().ToString();
    EXPECT_LT(again.losses.at(1), whole.losses.at(8)) << "it begins where the other ended";
  }
}

TEST_F(TrainTest, RefusesModelsThatItCannotTrain) {
  Options options = Tiny("bert");
  options.model_config = {{"model_type", "bert"}};
  const Ran ran = Run(options);
  ASSERT_FALSE(ran.outcome);
  EXPECT_EQ(ran.outcome.error().code(), Code::kInvalidArgument);
  EXPECT_THAT(ran.outcome.error().ToString(), testing::HasSubstr("does not learn train.objective causal_lm"));
}

TEST_F(TrainTest, RefusesLayoutsThatDoNotDivide) {
  Options options = Tiny("layouts");
  options.parallel = {.tensor = 3};
  const Ran uneven = RunRanks(options, 4);
  ASSERT_FALSE(uneven.outcome);
  EXPECT_THAT(uneven.outcome.error().ToString(), testing::HasSubstr("4 ranks are not a multiple of"));
  const Ran heads = RunRanks(options, 3);
  ASSERT_FALSE(heads.outcome);
  EXPECT_THAT(heads.outcome.error().ToString(), testing::HasSubstr("4 attention heads do not divide among 3"));
}

/// The first global batch of a run that packs documents, whose boundaries it keeps: its loss is that of the documents,
/// or the parts of them that sequences were cut into, one by one.
TEST_F(TrainTest, DocumentsThatShareARowAreLearntAsIfAlone) {
  Options options = Tiny("boundaries");
  options.data.boundaries = true;
  options.steps = 1;
  const Ran ran = RunRanks(options, 2);
  ASSERT_TRUE(ran.outcome) << ran.outcome.error().ToString();

  auto connection = object::OpenConnection({}).value();
  const std::string content = ReadFile(options.tokenizer_url).value();
  std::shared_ptr<const tokenizer::Tokenizer> tokenizer = tokenizer::Load(AsBytes(content), "tokenizer.model").value();
  auto dataset = data::Dataset::Open(*connection, tokenizer, options.data, {}).value();
  options.model_config["vocab_size"] = tokenizer->vocab_size();
  const auto config = engine::ParseModelConfig(options.model_config, "model.config").value();
  auto model = engine::MakeModel(config, at::kFloat, at::kCPU, options.seed).value();
  double loss = 0, labels = 0;
  int documents = 0;
  for (std::uint64_t sample = 0; sample < 8; ++sample) {
    std::vector<std::int32_t> inputs(32), targets(32), positions(32);
    data::SequenceRow row{.inputs = inputs, .labels = targets, .positions = positions};
    ASSERT_TRUE(dataset->ReadSample(0, sample, row));
    for (int begin = 0, end = 1; begin < 32; begin = end++) {
      while (end < 32 && positions[end] != 0) ++end;
      const auto part = [&](std::vector<std::int32_t>& ids) {
        return at::from_blob(&ids[begin], {1, end - begin}, at::kInt).to(at::kLong);
      };
      loss += model->LossSum(part(inputs), part(targets)).item<double>();
      ++documents;
    }
    labels += static_cast<double>(32 - std::ranges::count(targets, data::kIgnoreLabel));
  }
  EXPECT_GT(documents, 8);
  EXPECT_NEAR(ran.losses.at(1), loss / labels, 1e-6 * loss / labels);
}

/// Packed in all ways that keep documents apart: the position in the data and the losses are those of a run that was
/// never stopped, and ranks and micro-batches change nothing.
TEST_F(TrainTest, PackedDocumentsResumeBitForBit) {
  for (const auto mode : {data::SequenceMode::kPack, data::SequenceMode::kPad}) {
    Options options = Tiny("packed");
    options.data.mode = mode;
    options.data.best_fit = mode == data::SequenceMode::kPad;
    options.data.boundaries = true;
    options.steps = 6;
    const Ran whole = Run(options);
    ASSERT_TRUE(whole.outcome) << whole.outcome.error().ToString();
    options.micro_batch = 1;
    const Ran two = RunRanks(options, 2);
    options.micro_batch = 2;
    options.checkpoint.url = CheckpointUrl(mode == data::SequenceMode::kPack ? "packed" : "fitted");
    const Ran first = Run(options, 2), second = Run(options);
    ASSERT_TRUE(two.outcome && first.outcome && second.outcome);
    EXPECT_EQ(second.plan.resumed_from, 3u);
    std::map<std::uint64_t, double> joined = first.losses;
    joined.insert(second.losses.begin(), second.losses.end());
    EXPECT_EQ(joined, whole.losses);
    for (const auto& [step, loss] : two.losses) EXPECT_NEAR(whole.losses.at(step), loss, 2e-4 * loss) << step;
  }
}

TEST_F(TrainTest, RanksAndMicroBatchesDoNotChangeTheRun) {
  Options options = Tiny("base");
  const Ran one = Run(options);
  options.micro_batch = 8;
  const Ran full = Run(options);
  options.micro_batch = 1;
  const Ran two = RunRanks(options, 2);
  ASSERT_TRUE(one.outcome && full.outcome && two.outcome);
  for (const auto& [step, loss] : one.losses) {
    EXPECT_NEAR(full.losses.at(step), loss, 2e-4 * loss) << step;
    EXPECT_NEAR(two.losses.at(step), loss, 2e-4 * loss) << step;
  }
}

TEST_F(TrainTest, GoesOnWithAnotherNumberOfRanks) {
  Options options = Tiny("reference");
  const Ran reference = Run(options);
  options.checkpoint.url = CheckpointUrl("elastic");
  ASSERT_TRUE(RunRanks(options, 2, 5).outcome);
  const Ran rest = RunRanks(options, 4);
  ASSERT_TRUE(rest.outcome) << rest.outcome.error().ToString();
  EXPECT_EQ(rest.plan.resumed_from, 6u);
  for (const auto& [step, loss] : rest.losses) EXPECT_NEAR(loss, reference.losses.at(step), 1e-3 * loss) << step;
}

TEST_F(TrainTest, GoesOnFromTheLocalDisk) {
  Options options = Tiny("local");
  const Ran whole = RunRanks(options, 2);
  options.checkpoint.url = CheckpointUrl("local");
  options.checkpoint.local = checkpoint::LocalTierOptions{.path = (folder_->path() / "disk").native()};
  options.checkpoint.local_every_steps = 3;
  const Ran first = RunRanks(options, 2, 5);
  ASSERT_TRUE(first.outcome) << first.outcome.error().ToString();
  EXPECT_THAT(first.saved, testing::ElementsAre(3, 4, 6, 6)) << "the last one on the disk and in the store";
  std::filesystem::remove_all(CheckpointUrl("local"));
  const Ran second = RunRanks(options, 2);
  ASSERT_TRUE(second.outcome) << second.outcome.error().ToString();
  EXPECT_EQ(second.plan.resumed_from, 6u);
  std::map<std::uint64_t, double> joined = first.losses;
  joined.insert(second.losses.begin(), second.losses.end());
  EXPECT_EQ(joined, whole.losses);
  // The store has lost it all again, after the last step this time.
  std::filesystem::remove_all(CheckpointUrl("local"));
  const Ran third = RunRanks(options, 2);
  ASSERT_TRUE(third.outcome) << third.outcome.error().ToString();
  EXPECT_THAT(third.saved, testing::ElementsAre(12));
  EXPECT_FALSE(Tensors(CheckpointUrl("local"), 12).empty());
}

TEST_F(TrainTest, GoesOnFromTheDisksOfTheMachinesThatAreLeft) {
  Options options = Tiny("machines");
  const Ran whole = RunRanks(options, 4);
  options.checkpoint.url = CheckpointUrl("machines");
  options.checkpoint.local = checkpoint::LocalTierOptions{.path = (folder_->path() / "disks").native(), .copies = 2};
  options.checkpoint.local_every_steps = 2;
  own_disks_ = true;
  const Ran first = RunRanks(options, 4, 5);
  ASSERT_TRUE(first.outcome) << first.outcome.error().ToString();
  std::filesystem::remove_all(CheckpointUrl("machines"));
  std::filesystem::remove_all(folder_->path() / "disks/machine-0");
  const Ran second = RunRanks(options, 4);
  ASSERT_TRUE(second.outcome) << second.outcome.error().ToString();
  EXPECT_EQ(second.plan.resumed_from, 6u);
  std::map<std::uint64_t, double> joined = first.losses;
  joined.insert(second.losses.begin(), second.losses.end());
  EXPECT_EQ(joined, whole.losses);
}

TEST_F(TrainTest, ACheckpointThatIsDueTooEarlyYields) {
  Options options = Tiny("busy");
  const Ran undisturbed = Run(options);
  options.checkpoint.url = CheckpointUrl("skip");
  options.checkpoint.when_busy = WhenBusy::kSkip;
  const Ran skipped = RunRanks(options, 2, 0, 9);
  ASSERT_TRUE(skipped.outcome) << skipped.outcome.error().ToString();
  EXPECT_THAT(skipped.saved, testing::ElementsAre(4, 12)) << "the last one is always made";
  options.checkpoint.url = CheckpointUrl("delay");
  options.checkpoint.when_busy = WhenBusy::kDelay;
  const Ran delayed = RunRanks(options, 2, 0, 9);
  ASSERT_TRUE(delayed.outcome) << delayed.outcome.error().ToString();
  ASSERT_GE(delayed.saved.size(), 2u);
  EXPECT_GE(delayed.saved[1], 9u);
  EXPECT_EQ(delayed.saved.back(), 12u);
  auto connection = object::OpenConnection({}).value();
  const auto reader = checkpoint::Reader::Open(*connection, CheckpointUrl("delay")).value();
  EXPECT_EQ(reader->manifest().metrics.at("loss"), delayed.losses.at(12));
}

TEST_F(TrainTest, Bf16RunsResumeToo) {
  Options options = Tiny("bf16");
  options.precision = at::kBFloat16;
  options.checkpoint.url = CheckpointUrl("bf16");
  const Ran first = Run(options, 4);
  ASSERT_TRUE(first.outcome) << first.outcome.error().ToString();
  const Ran second = Run(options);
  ASSERT_TRUE(second.outcome) << second.outcome.error().ToString();
  options.checkpoint.url.clear();
  const Ran whole = Run(options);
  std::map<std::uint64_t, double> joined = first.losses;
  joined.insert(second.losses.begin(), second.losses.end());
  EXPECT_EQ(joined, whole.losses);
  options.checkpoint.url = CheckpointUrl("bf16");
  options.precision = at::kFloat;
  EXPECT_THAT(Run(options).outcome.error().ToString(), HasSubstr("train.precision"));
}

TEST_F(TrainTest, Fp8NeedsAGpu) {
  Options options = Tiny("fp8");
  options.precision = at::kBFloat16;
  options.fp8 = engine::ops::Fp8Scaling::kCurrent;
  const Ran ran = Run(options);
  ASSERT_FALSE(ran.outcome);
  EXPECT_EQ(ran.outcome.error().code(), Code::kUnsupported);
  EXPECT_THAT(ran.outcome.error().ToString(), HasSubstr("train.precision: fp8 needs an NVIDIA GPU"));
}

/// Resumes bit for bit, and two ranks follow the run of one.
TEST_F(TrainTest, EveryOptimizerResumesBitForBit) {
  const std::pair<std::string, engine::OptimizerOptions> optimizers[] = {
      {"lamb", {.method = engine::LambOptions(), .rules = {.no_decay = {"*embed_tokens*"}}}},
      {"sgd", {.method = engine::SgdOptions{.nesterov = true, .weight_decay = 1e-3}}},
      {"plain-sgd", {.method = engine::SgdOptions{.momentum = 0}}}};
  for (const auto& [name, optimizer] : optimizers) {
    SCOPED_TRACE(name);
    Options options = Tiny(name);
    options.optimizer = optimizer;
    options.schedule.lr = name == "lamb" ? 2e-2 : 0.1;
    options.steps = 8;
    const Ran whole = Run(options);
    ASSERT_TRUE(whole.outcome) << whole.outcome.error().ToString();
    EXPECT_LT(whole.losses.at(8), whole.losses.at(1));
    options.micro_batch = 1;
    const Ran two = RunRanks(options, 2);
    options.micro_batch = 2;
    options.checkpoint.url = CheckpointUrl(name);
    const Ran first = Run(options, 2), second = Run(options);
    ASSERT_TRUE(two.outcome && first.outcome && second.outcome);
    EXPECT_EQ(second.plan.resumed_from, 3u);
    std::map<std::uint64_t, double> joined = first.losses;
    joined.insert(second.losses.begin(), second.losses.end());
    EXPECT_EQ(joined, whole.losses);
    for (const auto& [step, loss] : two.losses) EXPECT_NEAR(whole.losses.at(step), loss, 2e-4 * loss) << step;
  }
}

TEST_F(TrainTest, AnotherOptimizerIsRefusedByName) {
  Options options = Tiny("other-optimizer");
  options.steps = 4;
  options.checkpoint.url = CheckpointUrl("other-optimizer");
  ASSERT_TRUE(Run(options).outcome);
  options.optimizer.method = engine::SgdOptions();
  const Ran ran = Run(options);
  ASSERT_FALSE(ran.outcome);
  EXPECT_EQ(ran.outcome.error().code(), Code::kPreconditionFailed);
  EXPECT_THAT(ran.outcome.error().ToString(), HasSubstr("with the optimizer adamw, this run has sgd"));
}

TEST_F(TrainTest, CheckpointsWithoutAnOptimizersNameHaveAdamw) {
  const RunState state{.step = 3, .optimizer = "lamb", .optimizer_steps = 3, .model_config = Json::object()};
  Json meta = state.ToJson();
  EXPECT_EQ(RunState::FromJson(meta, "x")->optimizer, "lamb");
  meta["train"].erase("optimizer");
  EXPECT_EQ(RunState::FromJson(meta, "x")->optimizer, "adamw");
}

TEST_F(TrainTest, StepsOfThisRunKeepTheSchedule) {
  Options options = Tiny("parts-of-a-run");
  options.schedule.warmup_steps = 0;
  options.warmup_proportion = 0.25;
  const Ran whole = Run(options);
  ASSERT_TRUE(whole.outcome) << whole.outcome.error().ToString();
  options.checkpoint.url = CheckpointUrl("parts-of-a-run");
  options.steps_this_run = 5;
  std::map<std::uint64_t, double> joined;
  std::vector<std::string> endings;
  for (int part = 0; part < 3; ++part) {
    const Ran ran = Run(options);
    ASSERT_TRUE(ran.outcome) << ran.outcome.error().ToString();
    EXPECT_EQ(ran.plan.steps, 12u);
    EXPECT_EQ(ran.saved.back(), ran.outcome->step) << "the last step is saved";
    EXPECT_FALSE(ran.outcome->stopped);
    joined.insert(ran.losses.begin(), ran.losses.end());
    endings.push_back(ran.outcome->ToJson()["ending"]);
  }
  EXPECT_EQ(joined, whole.losses) << "bit for bit, with the schedule of all 12 steps";
  EXPECT_THAT(endings, testing::ElementsAre("steps_this_run", "steps_this_run", "complete"));
  EXPECT_THAT((RunOutcome{.step = 5, .steps = 12}).ToText(), HasSubstr("step 5 of 12"));
}

/// The reported loss stays the plain cross-entropy, so the first step's is the same; the updates differ.
TEST_F(TrainTest, LabelSmoothingChangesTheUpdatesOnly) {
  Options options = Tiny("smooth");
  options.steps = 3;
  const Ran plain = Run(options);
  options.loss = {.label_smoothing = 0.1, .z_loss = 1e-4};
  const Ran smooth = Run(options);
  ASSERT_TRUE(plain.outcome && smooth.outcome);
  EXPECT_EQ(smooth.losses.at(1), plain.losses.at(1));
  EXPECT_NE(smooth.losses.at(3), plain.losses.at(3));
}

TEST_F(TrainTest, StartsFromACheckpointOfAnotherRun) {
  Options options = Tiny("donor");
  options.checkpoint.url = CheckpointUrl("donor");
  ASSERT_TRUE(Run(options).outcome);
  // Steps that change nothing: what the new run saves are the weights that it began with.
  options = Tiny("heir");
  options.model_url = CheckpointUrl("donor");
  options.checkpoint.url = CheckpointUrl("heir");
  options.schedule = {.shape = engine::Schedule::Shape::kConstant, .lr = 1e-30};
  options.steps = 1;
  const Ran ran = RunRanks(options, 2);
  ASSERT_TRUE(ran.outcome) << ran.outcome.error().ToString();
  EXPECT_LT(ran.losses.at(1), 5) << "random weights begin at log 300 = 5.7";
  const auto donor = Tensors(CheckpointUrl("donor"), 12), heir = Tensors(CheckpointUrl("heir"), 1);
  for (const auto& [name, bytes] : donor) {
    if (name.starts_with(checkpoint::kModelGroup)) EXPECT_TRUE(heir.at(name) == bytes) << name;
  }
  options.model_url = CheckpointUrl("none");
  options.checkpoint.url = CheckpointUrl("none again");
  EXPECT_THAT(Run(options).outcome.error().ToString(), HasSubstr("no model at"));
}

TEST_F(TrainTest, ALossThatIsNotANumberEndsTheRun) {
  Options options = Tiny("nan");
  options.schedule = {.shape = engine::Schedule::Shape::kConstant, .lr = 1e30};
  const Ran ran = Run(options);
  ASSERT_FALSE(ran.outcome);
  EXPECT_EQ(ran.outcome.error().code(), Code::kInternal);
  EXPECT_THAT(ran.outcome.error().ToString(), HasSubstr("learning rate"));
}

/// Some batches may have no label, as those of pairs whose prompts fill their halves of the rows.
TEST_F(TrainTest, AStepWithoutLabelsIsLeftOut) {
  std::string pairs;
  for (int i = 0; i < 16; ++i) {
    const std::string prompt = i < 8 ? std::string(200, 'q') : "q";
    pairs += DumpJson({{"prompt", prompt}, {"chosen", fmt::format("yes {}", i)}, {"rejected", "no"}}) + "\n";
  }
  const auto file = folder_->path() / "unlabelled" / "pairs.jsonl";
  std::filesystem::create_directory(file.parent_path());
  ASSERT_TRUE(WriteFileAtomic(file, AsBytes(pairs)));
  Options options = Tiny("unlabelled");
  options.data.sources = {{.url = file.native()}};
  options.data.objective = data::Objective::kDpo;
  options.data.shuffle_window = 0;
  options.lora = engine::LoraOptions{.rank = 4};
  options.steps = 3;
  std::vector<bool> unlabelled;
  on_step_ = [&](const StepReport& report) { unlabelled.push_back(report.unlabelled); };
  const Ran ran = Run(options);
  ASSERT_TRUE(ran.outcome) << ran.outcome.error().ToString();
  EXPECT_EQ(ran.outcome->step, 3u);
  EXPECT_THAT(unlabelled, testing::ElementsAre(true, false, true));
  EXPECT_GT(ran.norms.at(2), 0);
}

TEST_F(TrainTest, RefusesWhatCannotWork) {
  Options options = Tiny("bad");
  options.global_batch = 9;
  EXPECT_EQ(Run(options).outcome.error().code(), Code::kInvalidArgument);
  options = Tiny("bad");
  options.tokenizer_url = (folder_->path() / "none.model").native();
  EXPECT_EQ(Run(options).outcome.error().code(), Code::kNotFound);
  options = Tiny("bad");
  options.model_config["vocab_size"] = 10;
  EXPECT_EQ(Run(options).outcome.error().code(), Code::kInvalidArgument);
  options = Tiny("bad");
  options.model_config["max_position_embeddings"] = 16;
  EXPECT_EQ(Run(options).outcome.error().code(), Code::kInvalidArgument);
}

/// What all ranks hold is written by one of them: each element once, and about as much by each.
TEST_F(TrainTest, RanksShareWhatIsSaved) {
  Options options = Tiny("shares");
  options.steps = 1;
  options.global_batch = 6;
  options.model_config["hidden_size"] = 128;
  options.model_config["intermediate_size"] = 344;
  options.checkpoint.url = CheckpointUrl("shares");
  const Ran ran = RunRanks(options, 3);
  ASSERT_TRUE(ran.outcome) << ran.outcome.error().ToString();
  auto connection = object::OpenConnection({}).value();
  const auto reader = checkpoint::Reader::Open(*connection, options.checkpoint.url).value();
  ASSERT_TRUE(reader->Verify());
  std::vector<std::uint64_t> sizes;
  for (const auto& [name, file] : reader->manifest().files) sizes.push_back(file.size);
  ASSERT_EQ(sizes.size(), 3u);
  const auto [least, most] = std::ranges::minmax(sizes);
  EXPECT_LT(most - least, most / 10);
}

}  // namespace
}  // namespace millrace::train
