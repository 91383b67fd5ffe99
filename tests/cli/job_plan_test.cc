// `millrace job plan` as its users see it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/cli/object_fixture.h"

namespace millrace {
namespace {

using testing::HasSubstr;
using testing_support::Ran;

constexpr std::string_view kPlanned = R"(name: planned
model: {config: {hidden_size: 4096, num_layers: 32, num_heads: 32, num_kv_heads: 8, vocab_size: 128256}}
data:
  sources: [{url: "s3://corpus/*.jsonl"}]
  tokenizer: s3://corpus/tokenizer.model
  sequence_length: 4096
train: {steps: 3, global_batch: 64, precision: bf16, parallel: auto}
run: {processes_per_node: 8, machine: p5.48xlarge}
)";

class JobPlanTest : public ObjectFixture {
 protected:
  void SetUp() override {
    ObjectFixture::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    program_.Write("job.yaml", kPlanned);
  }
  /// There is no store: what a plan needs is in the job file.
  Ran Plan(std::vector<std::string> more, std::vector<std::string> flags = {}) {
    std::vector<std::string> arguments = std::move(flags);
    arguments.insert(arguments.end(), {"--endpoint-url", "http://127.0.0.1:1", "job", "plan", "job.yaml"});
    arguments.insert(arguments.end(), more.begin(), more.end());
    return program_.Run(std::move(arguments));
  }
};

TEST_F(JobPlanTest, FindsALayoutThatCanBeGivenByHand) {
  const Ran found = Plan({}, {"--json"});
  ASSERT_EQ(found.exit, 0) << found.err;
  const Json plan = found.objects().at(0);
  EXPECT_EQ(plan["ranks"], 8);
  EXPECT_TRUE(plan["fits"].get<bool>());
  EXPECT_GT(plan["layouts_tried"], 100);
  const Ran given = Plan({"--set", "train.parallel=" + plan["parallel"].dump()}, {"--json"});
  ASSERT_EQ(given.exit, 0) << given.err;
  EXPECT_EQ(given.objects().at(0)["step"], plan["step"]);
}

TEST_F(JobPlanTest, SaysWhatDoesNotFit) {
  const Ran ran = Plan({"--machine", "p4d.24xlarge", "--set", "train.parallel={data: auto}"});
  EXPECT_EQ(ran.exit, 1);
  EXPECT_THAT(ran.out, HasSubstr("DOES NOT FIT"));
  EXPECT_THAT(Plan({"--machine", "p4d.24xlarge", "--set", "run.processes_per_node=1"}).err,
              HasSubstr("layouts fits: a rank needs at least"));
}

TEST_F(JobPlanTest, PlansForManyMachines) {
  const Ran ran = Plan({"--set", "run.nodes=2048", "--set", "train.global_batch=16384"}, {"--json"});
  ASSERT_EQ(ran.exit, 0) << ran.err;
  EXPECT_EQ(ran.objects().at(0)["ranks"], 16384);
  EXPECT_NE(program_.Run({"job", "render", "job.yaml", "--set", "run.nodes=2048"}).exit, 0);
}

TEST_F(JobPlanTest, EstimatesWhatAJobCosts) {
  const std::vector<std::string> priced = {"--set", "cost={price_per_hour: 100, currency: EUR, cap: 2}",
                                           "--set", "run.nodes=2",
                                           "--set", "train.steps=3600"};
  const Json plan = Plan(priced, {"--json"}).objects().at(0);
  const double step_s = plan["step"]["seconds"].get<double>();
  EXPECT_EQ(plan["cost"]["machines"], 2);
  EXPECT_NEAR(plan["cost"]["whole"].get<double>(), 200 * step_s, 1e-6);
  EXPECT_NEAR(plan["cost"]["hours"].get<double>(), step_s, 1e-9);
  EXPECT_THAT(Plan(priced).out, testing::AllOf(HasSubstr("\ncost: 200.00 EUR an hour for 2 machines"),
                                               HasSubstr("more than cost.cap (2.00 EUR)")));
  EXPECT_THAT(Plan({}).out, testing::Not(HasSubstr("cost")));
}

/// The reference of `objective: dpo` passes over all pairs of a step before the first one is learnt from.
TEST_F(JobPlanTest, CountsTheReferenceOfPairs) {
  program_.Write("base/config.json", R"({"model_type": "llama", "vocab_size": 32000, "hidden_size": 4096,
      "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32, "max_position_embeddings": 4096})");
  const std::string header = R"({"weight":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})";
  program_.Write("base/model.safetensors", std::string(1, static_cast<char>(header.size())) + std::string(7, '\0') +
                                               header + std::string(4, '\0'));
  const auto plan = [&](std::string_view objective) {
    const Ran ran = Plan({"--set", "model={from: ./base}", "--set", "lora={r: 16}", "--set",
                          "train.parallel={data: auto}", "--set", "train.objective=" + std::string(objective)},
                         {"--json"});
    EXPECT_EQ(ran.exit, 0) << ran.err;
    return ran.objects().at(0)["step"];
  };
  const Json pairs = plan("dpo"), tokens = plan("causal_lm");
  EXPECT_EQ(tokens["reference_s"], 0);
  EXPECT_NEAR(pairs["reference_s"].get<double>() / pairs["compute_s"].get<double>(), 0.5, 0.1);
  EXPECT_GT(pairs["seconds"].get<double>(), 1.2 * tokens["seconds"].get<double>());
}

TEST_F(JobPlanTest, NamesTheKeyThatSparesTheTokenizer) {
  const Ran ran = Plan({"--set", "model.config.vocab_size=0"});
  EXPECT_NE(ran.exit, 0);
  EXPECT_THAT(ran.err, HasSubstr("set model.config.vocab_size"));
}

}  // namespace
}  // namespace millrace
