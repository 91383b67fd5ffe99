// The article's pre-training of BERT: NVIDIA's samples in a bucket, two stages and twelve micro-batches on four ranks.
// A rank is killed, the supervisor starts the job again, and the losses are those of a run that nothing disturbed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>

#include "millrace/base/text.h"
#include "millrace/s3d/server.h"
#include "tests/support/program.h"
#include "tests/train/nvidia_shards.h"

namespace millrace::train {
namespace {

constexpr std::string_view kShards =
    "hdf5_lower_case_1_seq_len_32_max_pred_5_masked_lm_prob_0.15_random_seed_12345_dupe_factor_5";
constexpr std::string_view kVocabulary =
    "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n.\nthe\nmill\nrace\nturns\nwater\nwheel\nstone\ngrain\nflour\nbread\n";
constexpr std::string_view kJob = R"(name: {}
model: {{family: bert, config: {{hidden_size: 32, num_layers: 4, num_heads: 4, intermediate_size: 48}}}}
data:
  sources: [{{url: "s3://corpus/{}/"}}]
  tokenizer: s3://corpus/vocab.txt
  sequence_length: 32
  threads: 1
train:
  objective: mlm
  steps: {}
  global_batch: 48
  parallel: {{partitions: 2, microbatches: 12, pipeline: interleaved, placement_strategy: cluster, ddp: true}}
  optimizer: {{name: lamb, lr: 5.0e-3}}
  threads: 1
checkpoint: {{url: "s3://corpus/runs/{}", every_steps: 4}}
run: {{processes_per_node: 4, max_restarts: 3}}
)";
constexpr int kSteps = 24;

class ArticleBert : public testing::Test {
 protected:
  void SetUp() override {
    if (!program_.available() || !std::filesystem::exists(program_.path().parent_path() / "millrace-train")) {
      GTEST_SKIP() << "millrace-train is not built";
    }
    server_ =
        s3d::Server::Start(
            {.root = folder_.path() / "s3d", .access_key = "key", .secret_key = "secret-of-the-test", .sync = false})
            .value();
    ASSERT_TRUE(server_->CreateBucket("corpus"));
    program_.env().insert({{"AWS_ENDPOINT_URL", server_->endpoint()},
                           {"AWS_ACCESS_KEY_ID", "key"},
                           {"AWS_SECRET_ACCESS_KEY", "secret-of-the-test"},
                           {"AWS_REGION", "us-east-1"}});
    program_.Write("vocab.txt", kVocabulary);
    for (std::uint64_t shard = 0; shard < 3; ++shard) {
      program_.Write(fmt::format("{}/part-0000{}.hdf5", kShards, shard),
                     NvidiaShardBytes({.seed = shard, .samples = 120 + 40 * shard}));
    }
    ASSERT_EQ(program_.Run({"cp", "vocab.txt", "s3://corpus/vocab.txt"}).exit, 0);
    ASSERT_EQ(program_.Run({"sync", std::string(kShards), fmt::format("s3://corpus/{}", kShards)}).exit, 0);
    for (const char* name : {"whole", "killed"}) {
      program_.Write(fmt::format("{}.yaml", name), fmt::format(fmt::runtime(kJob), name, kShards, kSteps, name));
    }
  }

  /// Whole lines of what the job that was started has printed.
  std::vector<Json> Printed() const {
    std::vector<Json> lines;
    const std::string text = ReadFile(program_.folder().parent_path() / "stdout").value_or("");
    for (std::string_view line : Split(std::string_view(text).substr(0, text.rfind('\n') + 1), '\n')) {
      if (!line.empty()) lines.push_back(ParseJson(line, "a line").value());
    }
    return lines;
  }
  /// Returns every loss of each step; a step may be made twice.
  static std::map<int, std::set<std::string>> Losses(const std::vector<Json>& lines) {
    std::map<int, std::set<std::string>> losses;
    for (const Json& line : lines) {
      if (line.contains("loss") && !line.contains("event")) losses[line["step"]].insert(DumpJson(line["loss"]));
    }
    return losses;
  }
  static bool HasCheckpoint(const std::vector<Json>& lines) {
    return std::ranges::any_of(lines, [](const Json& line) { return line.value("event", "") == "checkpoint"; });
  }

  TempDir folder_ = TempDir::Create().value();
  std::unique_ptr<s3d::Server> server_;
  testing_support::Program program_;
};

TEST_F(ArticleBert, KilledRunsEndWithTheSameLosses) {
  const testing_support::Ran whole = program_.Run({"job", "run", "whole.yaml", "--json"});
  ASSERT_EQ(whole.exit, 0) << whole.err;
  const auto expected = Losses(whole.objects());
  ASSERT_EQ(expected.size(), static_cast<std::size_t>(kSteps));

  Subprocess job = program_.Start({"job", "run", "killed.yaml", "--json"});
  const TimePoint deadline = SystemClock().Now() + std::chrono::seconds(60);
  while (!HasCheckpoint(Printed()) && !job.Poll() && SystemClock().Now() < deadline) {
    SystemClock().SleepFor(std::chrono::milliseconds(5));
  }
  const std::vector<Json> status = program_.Run({"--json", "job", "status", "killed"}).objects();
  ASSERT_FALSE(status.empty());
  ASSERT_EQ(status[0]["ranks"].size(), 4u);
  ASSERT_EQ(::kill(status[0]["ranks"][3]["pid"].get<int>(), SIGKILL), 0);
  ASSERT_TRUE(job.Wait(std::chrono::seconds(60)).value().ok());

  const std::vector<Json> lines = Printed();
  EXPECT_EQ(Losses(lines), expected);
  std::vector<int> resumed_from;
  for (const Json& line : lines) {
    if (line.value("event", "") == "plan") resumed_from.push_back(line["resumed_from"]);
  }
  ASSERT_EQ(resumed_from.size(), 2u);
  EXPECT_GE(resumed_from[1], 4);
  EXPECT_LT(resumed_from[1], kSteps);
}

}  // namespace
}  // namespace millrace::train
