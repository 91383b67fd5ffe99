// `millrace job machine` as a user runs it, and a plan for what it has measured.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/program.h"

namespace millrace {
namespace {

using testing::HasSubstr;

constexpr char kJob[] = R"(name: planned
model: {family: llama, config: {hidden_size: 256, num_layers: 2, num_heads: 4, num_kv_heads: 4,
  intermediate_size: 512, vocab_size: 1000}}
data: {sources: [{url: corpus.jsonl}], tokenizer: none.model, sequence_length: 128}
train: {steps: 1, global_batch: 4, micro_batch: 2}
)";

TEST(MachineDescription, APlanTakesWhatWasMeasured) {
  testing_support::Program program;
  if (!program.available()) GTEST_SKIP() << "MILLRACE_BIN is not set";
  program.Write("job.yaml", kJob);
  const auto described = program.Shell("millrace job machine > here.yaml");
  ASSERT_EQ(described.exit, 0) << described.err;
  const std::string text = program.Read("here.yaml");
  EXPECT_THAT(text, HasSubstr("name: this machine\n"));

  // Nothing computes at 10 MFLOP/s: the figures in the file count.
  const auto slower = program.Shell("sed -E 's/^(f32|bf16): .*/\\1: 0.01/' here.yaml > slow.yaml");
  ASSERT_EQ(slower.exit, 0) << slower.err;
  const auto seconds = [&](const std::string& machine) {
    const auto plan = program.Run({"--json", "job", "plan", "job.yaml", "--machine", machine});
    EXPECT_EQ(plan.exit, 0) << plan.err;
    return plan.objects().at(0)["step"]["seconds"].get<double>();
  };
  const double here = seconds("here.yaml");
  EXPECT_GT(here, 0);
  EXPECT_GT(seconds("slow.yaml"), 10 * here);
}

}  // namespace
}  // namespace millrace
