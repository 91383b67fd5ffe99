#include "millrace/train/ranks/same_job.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "millrace/collectives/connect.h"

namespace millrace::train {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr std::string_view kJob = R"(name: "small"
data:
  sources:
    - url: "/a.jsonl"
      weight: 1
  cache:
    path: ""
  threads: 2
train:
  seed: 1
  optimizer:
    name: adamw
    lr: 0.0003
  threads: 0
log:
  every_steps: 1
)";

std::string Changed(std::string_view from, std::string_view to) {
  std::string job(kJob);
  return job.replace(job.find(from), from.size(), to);
}

TEST(SameJob, NamesWhatDiffers) {
  EXPECT_THAT(DifferentKeys(kJob, kJob), IsEmpty());
  EXPECT_THAT(DifferentKeys(kJob, Changed("lr: 0.0003", "lr: 0.0004")), ElementsAre("train.optimizer"));
  EXPECT_THAT(DifferentKeys(Changed("seed: 1", "seed: 2"), kJob), ElementsAre("train.seed"));
  EXPECT_THAT(DifferentKeys(kJob, Changed("weight: 1\n", "weight: 1\n    - url: \"/b.jsonl\"\n      weight: 1\n")),
              ElementsAre("data.sources"));
  EXPECT_THAT(DifferentKeys(kJob, Changed("  seed: 1\n", "")), ElementsAre("train.seed"));
  EXPECT_THAT(DifferentKeys(Changed("  seed: 1\n", ""), kJob), ElementsAre("train.seed"));
  EXPECT_THAT(DifferentKeys(kJob, ""),
              ElementsAre("data", "data.sources", "name", "train", "train.optimizer", "train.seed"));
}

TEST(SameJob, MachinesMayDiffer) {
  EXPECT_THAT(DifferentKeys(kJob, Changed("path: \"\"", "path: \"/disk\"")), IsEmpty());
  EXPECT_THAT(DifferentKeys(kJob, Changed("threads: 2", "threads: 4")), IsEmpty());
  EXPECT_THAT(DifferentKeys(kJob, Changed("threads: 0", "threads: 8")), IsEmpty());
  EXPECT_THAT(DifferentKeys(kJob, Changed("every_steps: 1", "every_steps: 5")), IsEmpty());
}

/// What each of four ranks is told if rank 2 has another job.
std::vector<Status> Check(const std::string& of_rank_2) {
  auto groups = collectives::ConnectThreads(4);
  std::vector<Status> statuses(groups.size());
  std::vector<std::jthread> ranks;
  for (std::size_t rank = 0; rank < groups.size(); ++rank) {
    ranks.emplace_back(
        [&, rank] { statuses[rank] = CheckSameJob(*groups[rank], rank == 2 ? of_rank_2 : std::string(kJob)); });
  }
  ranks.clear();
  return statuses;
}

TEST(SameJob, AllRanksFailAlike) {
  for (const Status& status : Check(Changed("lr: 0.0003", "lr: 0.00031"))) {
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code(), Code::kInvalidArgument);
    EXPECT_THAT(status.error().ToString(), HasSubstr("rank 2"));
    EXPECT_THAT(status.error().ToString(), HasSubstr("these keys differ: train.optimizer."));
  }
  for (const Status& status : Check(std::string(kJob))) EXPECT_TRUE(status);
}

}  // namespace
}  // namespace millrace::train
