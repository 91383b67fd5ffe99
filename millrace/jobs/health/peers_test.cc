#include "millrace/jobs/health/peers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace millrace::jobs {
namespace {

using ::testing::HasSubstr;
using Level = Finding::Level;

std::map<std::string, Findings> Reports(const std::vector<double>& speeds) {
  std::map<std::string, Findings> reports;
  for (std::size_t i = 0; i < speeds.size(); ++i) {
    reports[fmt::format("n{}", i)] = {{Level::kOk, "cpu", "some speed", "", "", speeds[i]}};
  }
  return reports;
}

TEST(PeersTest, ASlowNodeIsWarnedOfAndAVerySlowOneFails) {
  auto reports = Reports({100, 101, 75, 49, 99});
  CompareWithPeers(reports);
  EXPECT_EQ(reports["n0"][0].level, Level::kOk);
  EXPECT_EQ(reports["n2"][0].level, Level::kWarn);
  EXPECT_EQ(reports["n3"][0].level, Level::kFail);
  EXPECT_THAT(reports["n3"][0].what, HasSubstr("some speed: 0.49 of the median of 5 nodes"));
  EXPECT_NE(reports["n3"][0].advice, "");
}

TEST(PeersTest, TwoNodesDoNotJudgeEachOther) {
  auto reports = Reports({100, 10});
  CompareWithPeers(reports);
  EXPECT_EQ(reports["n1"][0].level, Level::kOk);
}

TEST(PeersTest, OnlySpeedsOfTheSameCheckAreCompared) {
  auto reports = Reports({100, 100, 100});
  reports["n0"].push_back({Level::kOk, "memory", "", "", "", 10});
  reports["n1"].push_back({Level::kOk, "disk", "", ""});
  CompareWithPeers(reports);
  for (const auto& [node, findings] : reports) {
    for (const Finding& finding : findings) EXPECT_EQ(finding.level, Level::kOk) << node << finding.check;
  }
}

TEST(PeersTest, ASlowWayToTheStoreHasAdviceOfItsOwn) {
  std::map<std::string, Findings> reports;
  for (const auto& [node, speed] : {std::pair("n0", 900.0), {"n1", 910.0}, {"n2", 300.0}}) {
    reports[node] = {{Level::kOk, "store", "reads", "", "", speed}};
  }
  CompareWithPeers(reports);
  EXPECT_EQ(reports["n2"][0].level, Level::kFail);
  EXPECT_THAT(reports["n2"][0].advice, HasSubstr("its way to the store"));
}

}  // namespace
}  // namespace millrace::jobs
