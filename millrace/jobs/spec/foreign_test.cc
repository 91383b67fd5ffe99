#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/jobs/spec/foreign_program.h"
#include "millrace/jobs/testing/small_job.h"

namespace millrace::jobs {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::string_view kScript = R"(name: mine
run:
  command: [python, train.py, --lr, "3e-4"]
  directory: /home/me/code
  env: {HF_HUB_OFFLINE: "1"}
  mounts: {"s3://corpus/texts/": "/data/:ro", "s3://scratch": /scratch}
checkpoint: {url: "s3://runs/mine", path: /checkpoints}
)";

Result<Spec> ParseScript(const std::vector<std::string>& overrides = {}) {
  return Spec::Parse(kScript, "job.yaml", overrides);
}

std::string RefusalOf(const std::vector<std::string>& overrides) {
  const auto spec = ParseScript(overrides);
  return spec ? "" : spec.error().ToString();
}

TEST(ForeignProgram, IsReadRenderedAndSentToAgents) {
  const auto spec = ParseScript();
  ASSERT_TRUE(spec) << spec.error().ToString();
  EXPECT_EQ(*Spec::Parse(spec->Render(), "job.yaml"), *spec);
  const auto program = ForeignProgramOf(*spec);
  ASSERT_TRUE(program);
  EXPECT_THAT(program->command, ElementsAre("python", "train.py", "--lr", "3e-4"));
  EXPECT_THAT(program->mounts, ElementsAre(FolderMount{.url = "s3://corpus/texts/", .path = "/data", .read_only = true},
                                           FolderMount{.url = "s3://scratch", .path = "/scratch"}));
  EXPECT_EQ(program->directory, "/home/me/code");
  EXPECT_EQ(program->checkpoint_folder, "/checkpoints");
  EXPECT_EQ(program->checkpoint_url, "s3://runs/mine");
  EXPECT_EQ(*ForeignProgram::FromJson(program->ToJson()), *program);
  EXPECT_FALSE(ForeignProgramOf(*ParseSmall({})));
}

TEST(ForeignProgram, CheckpointsInAFolderNeedNoMount) {
  const auto program = ForeignProgramOf(*ParseScript({"checkpoint={url: /shared/runs/../mine}"}));
  EXPECT_EQ(program->checkpoint_folder, "/shared/mine");
  EXPECT_EQ(program->checkpoint_url, "");
  EXPECT_THAT(RefusalOf({"checkpoint={url: /shared/mine, path: /checkpoints}"}), HasSubstr("checkpoint.path"));
}

TEST(ForeignProgram, DamagedOrdersAreRefused) {
  const Json good = ForeignProgramOf(*ParseScript())->ToJson();
  for (const char* key : {"command", "directory", "source", "mounts", "checkpoint_folder", "checkpoint_url"}) {
    Json damaged = good;
    damaged[key] = 7;
    EXPECT_EQ(ForeignProgram::FromJson(damaged).error().code(), Code::kInvalidArgument) << key;
  }
  Json damaged = good;
  damaged["command"] = Json::array({1});
  EXPECT_FALSE(ForeignProgram::FromJson(damaged));
}

TEST(ForeignProgram, KeysOfOurTrainingAreRefused) {
  for (const char* key : {"train.steps=5", "model.from=s3://models/llama", "data.tokenizer=x", "eval.every_steps=5",
                          "checkpoint.every_steps=5", "checkpoint.local={path: /d}"}) {
    EXPECT_THAT(RefusalOf({key}), HasSubstr("leave it out")) << key;
  }
  EXPECT_THAT(RefusalOf({"run.launcher=slurm", "run.elastic={min: 1}"}), HasSubstr("run.elastic"));
  EXPECT_THAT(Spec::Parse(kScript, "job.yaml", {}, SpecPurpose::kPlan).error().ToString(), HasSubstr("run.command"));
  EXPECT_THAT(ParseSmall({"run.mounts={\"s3://bee\": /b}"}).error().ToString(), HasSubstr("it is for run.command"));
  EXPECT_THAT(ParseSmall({"checkpoint.path=/b"}).error().ToString(), HasSubstr("it is for run.command"));
}

TEST(ForeignProgram, TrackersGetTheMetricsThatAreFound) {
  EXPECT_THAT(RefusalOf({"log={mlflow: {}}"}), HasSubstr("log.mlflow: needs log.metric_definitions"));
  EXPECT_THAT(RefusalOf({"log={wandb: {}}"}), HasSubstr("log.wandb: needs log.metric_definitions"));
  EXPECT_EQ(RefusalOf({"log={mlflow: {}, wandb: {}, metric_definitions: [{Name: a, Regex: b}]}"}), "");
  EXPECT_THAT(RefusalOf({"log.callbacks=/hooks.py"}), HasSubstr("is for Millrace's own training"));
}

TEST(ForeignProgram, ItsCodeMayTravel) {
  const std::string text = "name: mine\nrun: {command: [python, train.py], source: code}\n";
  const auto parse = [&](const std::vector<std::string>& more) { return Spec::Parse(text, "job.yaml", more); };
  const auto spec = parse({});
  ASSERT_TRUE(spec) << spec.error().ToString();
  EXPECT_EQ(*Spec::Parse(spec->Render(), "job.yaml"), *spec);
  EXPECT_EQ(ForeignProgramOf(*spec)->source, "code");
  EXPECT_THAT(parse({"run.directory=/code"}).error().ToString(), HasSubstr("runs in the folder of run.source"));
  EXPECT_THAT(parse({"run.source=s3://runs/mine/code"}).error().ToString(), HasSubstr("a folder of this machine"));
  EXPECT_TRUE(parse({"run.source=s3://runs/source/sha256-" + std::string(64, 'a') + ".tar"}));
  EXPECT_THAT(parse({"run.launcher=slurm"}).error().ToString(), HasSubstr("set log.url"));
  EXPECT_TRUE(parse({"run.launcher=slurm", "log.url=s3://runs/mine"}));
  EXPECT_THAT(ParseSmall({"run.source=code"}).error().ToString(), HasSubstr("it is for run.command"));
}

TEST(ForeignProgram, MistakesOfFoldersAndVariablesAreNamed) {
  const auto mounts = [](const std::string& map) { return RefusalOf({"run.mounts={" + map + "}"}); };
  EXPECT_THAT(mounts(R"("s3://bee": data)"), HasSubstr("should be an absolute path"));
  EXPECT_THAT(mounts(R"("s3://bee": "/")"), HasSubstr("should be an absolute path"));
  EXPECT_THAT(mounts(R"("s3://bee": /data, "s3://cee": /data/c)"), HasSubstr("overlap"));
  EXPECT_THAT(mounts(R"("s3://bee": /checkpoints/b)"), HasSubstr("overlap"));
  EXPECT_THAT(mounts(R"("s4://b": /data)"), HasSubstr("s4"));
  EXPECT_EQ(mounts(R"("s3://bee": /data, "s3://cee": /database)"), "");
  EXPECT_THAT(RefusalOf({"run.command=[\"\"]"}), HasSubstr("should begin with a program"));
  EXPECT_EQ(RefusalOf({"run.command=[python, train.py, --name, \"\"]"}), "");
  EXPECT_THAT(RefusalOf({"run.env={RANK: 1}"}), HasSubstr("the launcher sets it"));
  EXPECT_THAT(RefusalOf({"run.env={A-B: 1}"}), HasSubstr("cannot be the name of an environment variable"));
  EXPECT_THAT(ParseSmall({"run.env={1A: 1}"}).error().ToString(), HasSubstr("1A"));
}

TEST(ForeignProgram, TheCsiDriverMountsInPods) {
  const std::vector<std::string> pods = {"run.launcher=kubernetes", "run.image=mine:1"};
  const auto refusal = [&](std::vector<std::string> more) {
    more.insert(more.begin(), pods.begin(), pods.end());
    return RefusalOf(more);
  };
  EXPECT_THAT(refusal({}), HasSubstr("run.mounts_secret"));
  EXPECT_THAT(refusal({"run.mounts_secret=A_B"}), HasSubstr("cannot be the name of a Secret"));
  EXPECT_THAT(RefusalOf({"run.mounts_secret=keys"}), HasSubstr("it is for launcher: kubernetes"));
  EXPECT_THAT(refusal({"run.mounts_secret=keys", "run.mounts={\"hf://o/m\": /m}"}), HasSubstr("s3://"));
  const std::string text = "name: mine\nrun: {command: [python, train.py]}\n";
  EXPECT_TRUE(PodMounts(*Spec::Parse(text, "job.yaml", pods)).empty());
  const std::string saves = text + "checkpoint: {url: \"s3://runs/mine\"}\n";
  EXPECT_THAT(Spec::Parse(saves, "job.yaml", pods).error().ToString(), HasSubstr("run.mounts_secret"));
  EXPECT_TRUE(PodMounts(*Spec::Parse(saves, "job.yaml")).empty()) << "of the launcher local";

  std::vector<std::string> more = pods;
  more.insert(more.end(), {"run.mounts_secret=keys", "run.mounts={\"s3://corpus/texts\": \"/data/:ro\"}"});
  const auto spec = Spec::Parse(saves, "job.yaml", more);
  ASSERT_TRUE(spec) << spec.error().ToString();
  EXPECT_THAT(PodMounts(*spec), ElementsAre(FolderMount{.url = "s3://corpus/texts", .path = "/data", .read_only = true},
                                            FolderMount{.url = "s3://runs/mine", .path = "/mnt/checkpoints"}));
  const auto program = ForeignProgramOf(*spec);
  ASSERT_TRUE(program);
  EXPECT_TRUE(program->mounts.empty() && program->checkpoint_url.empty());
  EXPECT_EQ(program->checkpoint_folder, "/mnt/checkpoints");
  const auto folder = Spec::Parse(text + "checkpoint: {url: /saved}\n", "job.yaml", pods);
  ASSERT_TRUE(folder) << folder.error().ToString();
  EXPECT_EQ(ForeignProgramOf(*folder)->checkpoint_folder, "/saved") << "a volume of run.volumes, perhaps";
  more.emplace_back("checkpoint.path=/data/saved");
  EXPECT_THAT(Spec::Parse(saves, "job.yaml", more).error().ToString(), HasSubstr("overlap"));
}

}  // namespace
}  // namespace millrace::jobs
