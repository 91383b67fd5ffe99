#include "millrace/jobs/sagemaker/training_container.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/base/files/files.h"

namespace millrace::jobs {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class TrainingContainerTest : public testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directories(base_.path() / "input" / "config"); }
  void Write(const std::string& name, std::string_view text) {
    ASSERT_TRUE(WriteFileAtomic(base_.path() / "input" / "config" / name, AsBytes(text)));
  }
  Result<TrainingContainer> Read() { return ReadTrainingContainer(base_.path()); }
  std::string Refusal() {
    const auto container = Read();
    return container ? "" : container.error().ToString();
  }

  TempDir base_ = *TempDir::Create();
};

TEST_F(TrainingContainerTest, WithoutFilesThereIsOneHost) {
  const auto container = Read();
  ASSERT_TRUE(container) << container.error().ToString();
  EXPECT_THAT(container->hosts, ElementsAre("localhost"));
  EXPECT_EQ(container->host_index(), 0);
  EXPECT_THAT(container->channels, IsEmpty());
}

TEST_F(TrainingContainerTest, HyperparametersAreJsonOrTexts) {
  Write("hyperparameters.json", R"({"train.steps": "100", "data.tokenizer": "\"t.model\"", "name": "mine",
      "train": "{\"global_batch\": 8}", "sagemaker_program": "\"train.py\"", "job": "job.yaml"})");
  const auto container = Read();
  ASSERT_TRUE(container) << container.error().ToString();
  EXPECT_EQ(container->Reserved("sagemaker_program"), "train.py");
  EXPECT_THAT(*AssignmentsOf(*container, {"job"}), ElementsAre(R"(data.tokenizer="t.model")", R"(name="mine")",
                                                               R"(train={"global_batch":8})", "train.steps=100"));
  EXPECT_THAT(AssignmentsOf(*container, {}).error().ToString(), HasSubstr("the hyperparameter job is not a key"));
}

TEST_F(TrainingContainerTest, HostsAreCountedInTheSameOrderEverywhere) {
  Write("resourceconfig.json", R"({"current_host": "algo-1", "hosts": ["algo-2", "algo-1", "algo-3"]})");
  EXPECT_THAT(Read()->hosts, ElementsAre("algo-1", "algo-2", "algo-3"));
  EXPECT_EQ(Read()->host_index(), 0);
  Write("resourceconfig.json", R"({"current_host": "algo-9", "hosts": ["algo-2", "algo-1"]})");
  EXPECT_THAT(Refusal(), HasSubstr("\"algo-9\" is not one of hosts"));
}

TEST_F(TrainingContainerTest, ChannelsSayHowTheirDataCome) {
  Write("inputdataconfig.json", R"({"train": {"TrainingInputMode": "Pipe", "ContentType": "text/plain"},
      "eval": {"S3DistributionType": "ShardedByS3Key", "RecordWrapperType": "RecordIO"}})");
  const auto container = Read();
  ASSERT_EQ(container->channels.size(), 2U);
  EXPECT_TRUE(container->channels[0].is_sharded && container->channels[0].has_record_io);
  EXPECT_TRUE(container->channels[1].is_pipe);
  EXPECT_EQ(container->PipeOf(container->channels[1]), base_.path() / "input" / "data" / "train_0");
}

TEST_F(TrainingContainerTest, FilesOfAnotherFormAreNamed) {
  Write("hyperparameters.json", "[]");
  EXPECT_THAT(Refusal(), HasSubstr("hyperparameters.json should hold an object"));
  Write("hyperparameters.json", "{}");
  for (const char* name : {"../up", ".", "a b", ""}) {
    Write("inputdataconfig.json", DumpJson(Json{{name, Json::object()}}));
    EXPECT_THAT(Refusal(), HasSubstr("should be a channel")) << name;
  }
}

TEST(CommandLineOf, WritesValuesAsPythonDoes) {
  const std::map<std::string, Json> values = {{"b", Json(true)},
                                              {"list", Json::parse(R"([1, "a", null, {"k": false}])")},
                                              {"lr", Json(1e-05)},
                                              {"map", Json::parse(R"({"z": 1, "a": true, "n": null})")},
                                              {"n", Json(nullptr)}};
  EXPECT_THAT(CommandLineOf(values), ElementsAre("-b", "True", "--list", "[1, 'a', None, {'k': False}]", "--lr",
                                                 "1e-05", "--map", "a=True,n=None,z=1", "-n", ""));
}

TEST(PlacementAssignments, OnlyTheFirstHostReportsTheJob) {
  TrainingContainer container{.hosts = {"algo-1", "algo-2"}, .current_host = "algo-1"};
  EXPECT_THAT(PlacementAssignments(container, "my job/1"),
              ElementsAre("name=\"myjob1\"", "run.launcher=sagemaker", "run.nodes=2", "run.max_restarts=0"));
  container.current_host = "algo-2";
  EXPECT_THAT(PlacementAssignments(container, ""),
              ElementsAre("name=\"training\"", "run.launcher=sagemaker", "run.nodes=2", "run.max_restarts=0",
                          "log.url=\"\"", "log.webhook=\"\"", "log.tensorboard=\"\""));
}

}  // namespace
}  // namespace millrace::jobs
