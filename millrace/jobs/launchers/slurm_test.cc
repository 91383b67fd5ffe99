#include "millrace/jobs/launchers/slurm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace millrace::jobs {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr std::string_view kJob = R"(name: tested
data: {sources: [{url: "s3://corpus/x.jsonl"}], tokenizer: "s3://models/t.model"}
train: {steps: 10, global_batch: 8}
run: {launcher: slurm, nodes: 2, processes_per_node: 4}
)";

std::string Script(const std::vector<std::string>& assignments = {}) {
  const auto spec = Spec::Parse(kJob, "job.yaml", assignments);
  EXPECT_TRUE(spec) << spec.error().ToString();
  return RenderBatchScript(
      *spec, {.millrace = "/opt/it's here/millrace", .job_file = "/home/u/job.yaml", .output = "/home/u/%j.out"});
}

TEST(BatchScript, AsksForWholeNodesAndRunsTheSupervisorInPlaceOfTheShell) {
  EXPECT_EQ(Script(), R"(#!/bin/sh
#SBATCH --job-name="tested"
#SBATCH --nodes="2"
#SBATCH --ntasks-per-node="1"
#SBATCH --signal="B:TERM@180"
#SBATCH --output="/home/u/%j.out"
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --exclusive
exec '/opt/it'\''s here/millrace' job run --no-check '/home/u/job.yaml'
)");
}

TEST(BatchScript, AnArrayRunsTheFileOfItsElement) {
  const auto spec = *Spec::Parse(kJob, "job.yaml");
  const std::string script = RenderBatchScript(spec, {.millrace = "/opt/millrace",
                                                      .job_file = "/home/u/it's/tested-%a/job.yaml",
                                                      .output = "/home/u/%A_%a.out",
                                                      .array = "1,3%2"});
  EXPECT_THAT(script, HasSubstr("#SBATCH --array=\"1,3%2\"\n"));
  EXPECT_THAT(script, HasSubstr(R"(--no-check '/home/u/it'\''s/tested-'"$SLURM_ARRAY_TASK_ID"'/job.yaml')"));
}

TEST(BatchScript, HasWhatTheJobFileSays) {
  const std::string script =
      Script({"run.partition=main", "run.account=a", "run.qos=high", "run.constraint=a|b", "run.time=90s",
              "run.exclude=[n1, n2]", "run.cpus_per_node=16", "run.slurm_options=[\"--reservation=\\\"x y\\\"\"]"});
  for (const char* line : {"--partition=\"main\"\n", "--account=\"a\"\n", "--qos=\"high\"\n", "--constraint=\"a|b\"\n",
                           "--time=\"2\"\n", "--signal=\"B:TERM@60\"\n", "--exclude=\"n1,n2\"\n",
                           "--cpus-per-task=\"16\"\n", "#SBATCH --reservation=\"x y\"\n"}) {
    EXPECT_THAT(script, HasSubstr(line));
  }
  EXPECT_THAT(script, Not(HasSubstr("--exclusive")));
}

TEST(BatchScript, AsksForSparesAndKeepsTheAllocationWithoutALostNode) {
  EXPECT_THAT(Script({"run.spares=1"}), HasSubstr("--nodes=\"3\"\n#SBATCH --no-kill\n"));
  EXPECT_THAT(Script({"run.elastic.min=4"}), HasSubstr("--nodes=\"1-2\"\n#SBATCH --no-kill\n"));
  EXPECT_THAT(Script({"run.elastic.min=4", "run.spares=2"}), HasSubstr("--nodes=\"3-4\"\n#SBATCH --no-kill\n"));
  EXPECT_THAT(Script({"run.elastic.min=4"}), Not(HasSubstr("--ntasks-per-node")));  // it would mean one node
  EXPECT_THAT(Script(), Not(HasSubstr("--no-kill")));
}

TEST(BatchScript, ValuesCannotBecomeOtherLines) {
  const auto refused = Spec::Parse(kJob, "job.yaml", {"run.partition=\"a\\nrm -rf /\""});
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().ToString(), HasSubstr("partition"));
  EXPECT_THAT(Script({R"(run.partition='a" --wrap="b')"}), HasSubstr(R"(--partition="a\" --wrap=\"b")"));
  EXPECT_FALSE(Spec::Parse(kJob, "job.yaml", {"run.slurm_options=[\"rm\"]"}));
}

TEST(BatchScript, ItsKeysAreForSlurm) {
  const auto refused = Spec::Parse(kJob, "job.yaml", {"run.launcher=local", "run.nodes=1", "run.partition=main"});
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().ToString(), testing::AllOf(HasSubstr("partition"), HasSubstr("launcher: slurm")));
}

std::string StateAfter(std::string state, const SlurmJob& found, bool stop_requested = false) {
  JobStatus status{.name = "demo", .state = std::move(state)};
  ApplySlurmState(status, found, stop_requested);
  return status.state;
}

TEST(SlurmState, DecidesWhereTheSupervisorCannotTell) {
  EXPECT_EQ(StateAfter("running", {.id = "7", .state = "PENDING"}), "queued");
  EXPECT_EQ(StateAfter("queued", {.id = "7", .state = "RUNNING"}), "starting");
  EXPECT_EQ(StateAfter("running", {.id = "7", .state = "RUNNING"}), "running");
  EXPECT_EQ(StateAfter("interrupted", {.id = "7", .state = "COMPLETING"}), "stopping");
  EXPECT_EQ(StateAfter("running", {.id = "7"}), "lost");
  EXPECT_EQ(StateAfter("done", {.id = "7"}), "done");
  EXPECT_EQ(StateAfter("queued", {.id = "7", .state = "CANCELLED"}, /*stop_requested=*/true), "interrupted");
  EXPECT_EQ(StateAfter("running", {.id = "7", .state = "CANCELLED"}, /*stop_requested=*/true), "lost");
}

}  // namespace
}  // namespace millrace::jobs
