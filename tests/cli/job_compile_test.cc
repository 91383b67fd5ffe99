// `millrace job compile` as its users see it. The ranks are programs that only succeed or fail: train_compile_test has
// what ranks do.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/cli/object_fixture.h"

namespace millrace {
namespace {

using testing::HasSubstr;
using testing::Not;
using testing_support::Ran;

constexpr std::string_view kJob = R"(name: tried
model: {config: {hidden_size: 4096, num_layers: 32, num_heads: 32, num_kv_heads: 8, vocab_size: 128256}}
data:
  sources: [{url: "corpus.jsonl"}]
  tokenizer: tokenizer.model
  sequence_length: 4096
train:
  steps: 3
  global_batch: 24
  precision: bf16
  optimizer: {lr: 1.0e-3}
  parallel: {zero: 3, recompute: full}
run: {processes_per_node: 8, machine: p5.48xlarge}
)";

class JobCompileTest : public ObjectFixture {
 protected:
  void SetUp() override {
    ObjectFixture::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    program_.Write("job.yaml", kJob);
  }
  Ran Compile(std::vector<std::string> more) {
    std::vector<std::string> arguments = {"--json", "job", "compile"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return program_.Run(std::move(arguments));
  }
  Ran Largest(const std::string& program, std::vector<std::string> more = {}) {
    more.insert(more.end(), {"job.yaml", "--no-check", "--program", program});
    return Compile(more);
  }
};

TEST_F(JobCompileTest, NeedsAJobOrAQuestion) {
  EXPECT_EQ(Compile({}).exit, 2);
  EXPECT_THAT(Compile({}).err, HasSubstr("--list or --prune"));
  EXPECT_NE(Compile({"--list", "--prune"}).exit, 0);
  EXPECT_NE(Compile({"--older-than", "1d"}).exit, 0);
}

TEST_F(JobCompileTest, ListsAndPrunesAnEmptyCache) {
  for (const std::string question : {"--list", "--prune"}) {
    const Ran ran = Compile({question, "--cache", "nothing"});
    EXPECT_EQ(ran.exit, 0) << ran.err;
    EXPECT_EQ(ran.out, "");
  }
  program_.Write("compiled/" + std::string(64, 'a') + ".json", "damaged");
  EXPECT_TRUE(Compile({"--list", "--cache", "compiled"}).objects().at(0)["damaged"].get<bool>());
  EXPECT_EQ(program_.Run({"--dry-run", "job", "compile", "--prune", "--cache", "compiled"}).exit, 0);
  EXPECT_EQ(Compile({"--list", "--cache", "compiled"}).objects().size(), 1u);
  EXPECT_EQ(Compile({"--prune", "--cache", "compiled"}).exit, 0);
  EXPECT_EQ(Compile({"--list", "--cache", "compiled"}).out, "");
}

TEST_F(JobCompileTest, FindsTheLargestMicroBatch) {
  const Ran ran = Largest("/bin/true", {"--largest-micro-batch", "4096", "--scale-lr", "linear"});
  ASSERT_EQ(ran.exit, 0) << ran.err;
  const Json found = ran.objects().back();
  EXPECT_EQ(found["event"], "largest_micro_batch");
  const int micro_batch = found["micro_batch"].get<int>();
  EXPECT_GT(micro_batch, 1);
  EXPECT_LT(micro_batch, 4096) << "an accelerator has 80 GB";
  EXPECT_EQ(found["global_batch"], 8 * micro_batch) << "one pass on each of eight ranks";
  EXPECT_DOUBLE_EQ(found["lr"].get<double>(), 1e-3 * 8 * micro_batch / 24);
  EXPECT_LE(found["planned_bytes"].get<double>(), found["memory_limit_bytes"].get<double>());
  // One more does not fit, and says the planner so.
  const auto plan = [&](int batch) {
    return program_.Run({"job", "plan", "job.yaml", "--set", "train.micro_batch=" + std::to_string(batch), "--set",
                         "train.global_batch=" + std::to_string(8 * batch)});
  };
  EXPECT_EQ(plan(micro_batch).exit, 0);
  EXPECT_EQ(plan(micro_batch + 1).exit, 1);
}

TEST_F(JobCompileTest, KeepsToTheNumberAndTheRateThatItIsTold) {
  const Json found = Largest("/bin/true", {"--largest-micro-batch", "1"}).objects().back();
  EXPECT_EQ(found["micro_batch"], 1);
  EXPECT_EQ(found["global_batch"], 24);
  EXPECT_EQ(found["lr"], 1e-3);
}

TEST_F(JobCompileTest, TriesHalvesUntilOneRuns) {
  program_.Write("rank.sh", "#!/bin/sh\ngrep -q 'micro_batch: [12]$' \"$1\"\n");
  std::filesystem::permissions(program_.folder() / "rank.sh", std::filesystem::perms::owner_all);
  const Ran ran = Largest((program_.folder() / "rank.sh").string(), {"--largest-micro-batch", "8"});
  ASSERT_EQ(ran.exit, 0) << ran.err;
  EXPECT_EQ(ran.objects().back()["micro_batch"], 2);
  EXPECT_THAT(ran.err, HasSubstr("a micro-batch of 4 failed; trying at most 2"));
  const Ran none = Largest("/bin/false", {"--largest-micro-batch", "8"});
  EXPECT_NE(none.exit, 0);
  EXPECT_THAT(none.out, Not(HasSubstr("largest_micro_batch")));
}

TEST_F(JobCompileTest, SaysWhyThereIsNone) {
  const Ran none = Largest("/bin/true", {"--largest-micro-batch", "8", "--set", "train.parallel={recompute: none}",
                                         "--set", "run.processes_per_node=1", "--set", "train.precision=f32"});
  EXPECT_THAT(none.err, HasSubstr("not even a micro-batch of one sequence"));
  const Ran automatic = Largest("/bin/true", {"--largest-micro-batch", "8", "--set", "train.parallel=auto"});
  EXPECT_THAT(automatic.err, HasSubstr("millrace job plan"));
}

}  // namespace
}  // namespace millrace
