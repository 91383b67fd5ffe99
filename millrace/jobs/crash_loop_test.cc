#include "millrace/jobs/crash_loop.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace millrace::jobs {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(CrashLoopTest, OneStepOnDifferentNodesIsItsData) {
  CrashLoop loop(8);
  loop.RecordAttempt({57, "n1", false});
  loop.RecordAttempt({57, "n2"});
  loop.RecordAttempt({57, "n1"});
  EXPECT_EQ(loop.Suspect(), "");
  EXPECT_THAT(loop.Explain(), AllOf(HasSubstr("step 58 fails each time, on different nodes (n1, n2)"),
                                    HasSubstr("sequences 456 to 463 of the run's order")));
}

TEST(CrashLoopTest, OneNodeIsSuspectedFromItsSecondFailureOn) {
  CrashLoop loop(8);
  loop.RecordAttempt({40, "n1", false});
  EXPECT_EQ(loop.Suspect(), "");
  loop.RecordAttempt({40, "n1"});
  EXPECT_EQ(loop.Suspect(), "n1");
  EXPECT_THAT(loop.Explain(), AllOf(HasSubstr("step 41 fails each time on node n1"), HasSubstr("run.spares")));
  loop.ForgetNodes();
  loop.RecordAttempt({40, "n2"});
  EXPECT_EQ(loop.Suspect(), "");
}

TEST(CrashLoopTest, WithProgressBetweenItTakesThreeFailures) {
  CrashLoop loop(8);
  loop.RecordAttempt({40, "n1", false});
  loop.RecordAttempt({90, "n1", false});
  EXPECT_EQ(loop.Suspect(), "");
  loop.RecordAttempt({120, "n2", false});
  for (const std::uint64_t step : {130, 140}) loop.RecordAttempt({step, "n1", false});
  EXPECT_EQ(loop.Suspect(), "");
  loop.RecordAttempt({150, "n1", false});
  EXPECT_EQ(loop.Suspect(), "n1");
}

TEST(CrashLoopTest, WithoutNodesOnlyTheStepIsNamed) {
  CrashLoop loop(0);
  for (int i = 0; i < 3; ++i) loop.RecordAttempt({0, ""});
  EXPECT_EQ(loop.Suspect(), "");
  EXPECT_THAT(loop.Explain(), AllOf(HasSubstr("step 1 fails each time: its samples"), Not(HasSubstr("sequences 0"))));
}

TEST(CrashLoopTest, NoProgressAtAllIsSaidSo) {
  CrashLoop loop(8);
  for (const char* node : {"n1", "n2", "n1"}) loop.RecordAttempt({std::nullopt, node});
  EXPECT_THAT(loop.Explain(), HasSubstr("no attempt made a step"));
}

TEST(CrashLoopTest, EarlierStepsThanBeforeAreNoOneSample) {
  CrashLoop loop(8);
  loop.RecordAttempt({std::nullopt, ""});
  loop.RecordAttempt({7, ""});
  EXPECT_THAT(loop.Explain(), HasSubstr("different steps"));
}

}  // namespace
}  // namespace millrace::jobs
