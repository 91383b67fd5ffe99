#include "millrace/jobs/elastic.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace millrace::jobs {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::string_view kElasticJob = R"(name: tested
data: {sources: [{url: "s3://corpus/x.jsonl"}], tokenizer: "s3://models/t.model"}
train: {steps: 10, global_batch: 24}
run: {launcher: slurm, nodes: 6, processes_per_node: 2}
)";

Spec Parse(const std::vector<std::string>& assignments) {
  auto spec = Spec::Parse(kElasticJob, "job.yaml", assignments);
  EXPECT_TRUE(spec) << spec.error().ToString();
  return *spec;
}

TEST(ElasticTest, WithoutTheKeyThereIsOneSize) { EXPECT_THAT(NodeCounts(Parse({})), ElementsAre(6)); }

TEST(ElasticTest, OnlySizesAtWhichTheBatchDividesAreTaken) {
  EXPECT_THAT(NodeCounts(Parse({"run.elastic.min=2"})), ElementsAre(6, 4, 3, 2, 1));
  EXPECT_THAT(NodeCounts(Parse({"run.elastic.min=5"})), ElementsAre(6, 4, 3));
  EXPECT_THAT(NodeCounts(Parse({"run.elastic={min: 6, max: 24}"})), ElementsAre(12, 6, 4, 3));
  EXPECT_THAT(NodeCounts(Parse({"run.elastic.min=2", "train.parallel.tensor=2"})), ElementsAre(6, 4, 3, 2, 1));
}

TEST(ElasticTest, TheJobStaysTheSameButForItsNodes) {
  const Spec spec = Parse({"run.elastic.min=2", "train.micro_batch=2"});
  const auto smaller = OnNodes(spec, 3);
  ASSERT_TRUE(smaller) << smaller.error().ToString();
  EXPECT_EQ(smaller->ranks(), 6);
  EXPECT_EQ(smaller->train, spec.train);
  EXPECT_FALSE(OnNodes(spec, 5));
}

TEST(ElasticTest, OnThisMachineRanksAreCounted) {
  const Spec spec = Parse({"run={launcher: local, processes_per_node: 4, elastic: {min: 2}}"});
  EXPECT_THAT(NodeCounts(spec), ElementsAre(4, 3, 2));
  const auto smaller = OnNodes(spec, 3);
  ASSERT_TRUE(smaller) << smaller.error().ToString();
  EXPECT_EQ(smaller->ranks(), 3);
  EXPECT_EQ(smaller->run.nodes, 1);
}

TEST(ElasticTest, LimitsMustFitTheJob) {
  for (const char* wrong : {"run.elastic.min=13", "run.elastic={min: 1, max: 11}"}) {
    const auto refused = Spec::Parse(kElasticJob, "job.yaml", {wrong});
    ASSERT_FALSE(refused);
    EXPECT_THAT(refused.error().ToString(), HasSubstr("nodes × processes_per_node (12)"));
  }
}

}  // namespace
}  // namespace millrace::jobs
