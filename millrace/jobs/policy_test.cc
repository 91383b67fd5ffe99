#include "millrace/jobs/policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace millrace::jobs {
namespace {

using Action = Policy::Action;
using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::seconds;
using ::testing::HasSubstr;

/// Two ranks, moved by hand.
class PolicyTest : public testing::Test {
 protected:
  explicit PolicyTest(const Policy::Options& options = {.max_restarts = 10, .sequences_per_step = 8})
      : policy_(options, Random(1)) {}
  void Start() {
    ASSERT_EQ(Next(), Action::kStart);
    ranks_.assign(2, RankState());
    policy_.Started(now_, 2);
    ASSERT_EQ(Next(), Action::kWait);
  }
  Action Next(bool stop = false) {
    last_ = policy_.Next(now_, ranks_, stop);
    return last_.action;
  }
  void Step(std::uint64_t step, Duration took = seconds(1)) {
    now_ += took;
    for (RankState& rank : ranks_) {
      rank.step = step;
      ++rank.beats;
    }
  }
  void EndAll(ExitState exit) {
    for (RankState& rank : ranks_)
      if (!rank.exit) rank.exit = exit;
  }
  /// The whole of a failing attempt: steps up to `step` (none: fails before any), then rank 1 is killed.
  Action FailAt(std::optional<std::uint64_t> step) {
    if (step) {
      Step(*step);
      Next();
    }
    ranks_[1].exit = ExitState{.signal = 9};
    EXPECT_EQ(Next(), Action::kKill);
    EndAll({.signal = 9});
    return Next();
  }
  void SitOutDelay() {
    ASSERT_EQ(last_.action, Action::kWait);
    now_ = last_.until;
  }

  Policy policy_;
  TimePoint now_ = TimePoint(minutes(100));
  std::vector<RankState> ranks_;
  Policy::Decision last_;
};

TEST_F(PolicyTest, EndsWellWhenAllRanksDo) {
  Start();
  Step(1);
  EXPECT_EQ(Next(), Action::kWait);
  EndAll({});
  EXPECT_EQ(Next(), Action::kEnd);
  EXPECT_EQ(policy_.outcome().ending, JobOutcome::Ending::kDone);
  EXPECT_EQ(policy_.outcome().exit_status, 0);
  EXPECT_EQ(Next(), Action::kEnd);
}

TEST_F(PolicyTest, RanksThatSaveAndLeaveAreLetDoIt) {
  Start();
  Step(5);
  // The machine of rank 1 is to be taken away: all ranks agree to leave. Rank 0 still writes the manifest.
  ranks_[1].exit = ExitState{.exit_code = 130};
  EXPECT_EQ(Next(), Action::kWait);
  EndAll({.exit_code = 130});
  EXPECT_EQ(Next(), Action::kWait);
  SitOutDelay();
  EXPECT_EQ(Next(), Action::kStart);
  EXPECT_THAT(policy_.failure()->what, HasSubstr("saved and left at step 5"));
}

TEST_F(PolicyTest, ARankThatDoesNotLeaveWithTheOthersIsKilled) {
  Start();
  Step(5);
  ranks_[1].exit = ExitState{.exit_code = 130};
  EXPECT_EQ(Next(), Action::kWait);
  now_ += Policy::Options().grace;
  ranks_[0].beats += 1;  // it lives
  EXPECT_EQ(Next(), Action::kKill);
}

TEST_F(PolicyTest, OneFailureEndsTheAttemptAndStartsAnother) {
  Start();
  EXPECT_EQ(FailAt(5), Action::kWait);
  EXPECT_EQ(policy_.failure()->rank, 1);
  EXPECT_THAT(policy_.failure()->what, HasSubstr("rank 1 was killed by signal 9"));
  EXPECT_THAT(policy_.failure()->what, HasSubstr("at step 5"));
  EXPECT_GE(last_.until - now_, milliseconds(125));
  EXPECT_LE(last_.until - now_, milliseconds(250));
  EXPECT_EQ(Next(), Action::kWait) << "not before the delay is over";
  SitOutDelay();
  Start();
  EXPECT_EQ(policy_.attempt(), 2);
  EXPECT_EQ(policy_.restarts(), 1);
  EXPECT_FALSE(policy_.failure());
}

TEST_F(PolicyTest, ARunThatMustNotGoOnIsNotStartedAgain) {
  Start();
  Step(57);
  EXPECT_EQ(Next(), Action::kWait);
  EndAll({.exit_code = kExitLost});
  EXPECT_EQ(Next(), Action::kEnd);
  EXPECT_EQ(policy_.outcome().ending, JobOutcome::Ending::kFailed);
  EXPECT_EQ(policy_.outcome().exit_status, kExitLost);
  EXPECT_THAT(policy_.outcome().message, HasSubstr("another run saves to the same checkpoint.url at step 57"));
}

TEST_F(PolicyTest, BlamesTheKilledRankRatherThanThoseThatMissIt) {
  Start();
  ranks_[0].exit = ExitState{.exit_code = 1};
  ranks_[1].exit = ExitState{.signal = 9};
  EXPECT_EQ(Next(), Action::kWait);
  EXPECT_EQ(policy_.failure()->rank, 1);
}

TEST_F(PolicyTest, GivesUpAfterFruitlessAttemptsInARow) {
  Start();
  EXPECT_EQ(FailAt(std::nullopt), Action::kWait);
  SitOutDelay();
  Start();
  EXPECT_EQ(FailAt(std::nullopt), Action::kWait);
  SitOutDelay();
  Start();
  EXPECT_EQ(FailAt(std::nullopt), Action::kEnd);
  EXPECT_EQ(policy_.outcome().ending, JobOutcome::Ending::kFailed);
  EXPECT_THAT(policy_.outcome().message, HasSubstr("no progress"));
}

TEST_F(PolicyTest, SaysWhatFruitlessAttemptsHaveInCommon) {
  for (int i = 0; i < 3; ++i) {
    Start();
    ranks_[1].node = fmt::format("n{}", i);
    ASSERT_EQ(FailAt(57), Action::kWait);
    SitOutDelay();
  }
  Start();
  ranks_[1].node = "n3";
  EXPECT_EQ(FailAt(57), Action::kEnd);
  EXPECT_THAT(policy_.outcome().message, HasSubstr("step 58 fails each time, on different nodes (n0, n1, n2, n3)"));
  EXPECT_THAT(policy_.outcome().message, HasSubstr("sequences 456 to 463"));
}

TEST_F(PolicyTest, FailuresOfANodeThatIsSetAsideDoNotCount) {
  for (int i = 0; i < 2; ++i) {
    Start();
    ranks_[1].node = "n2";
    ASSERT_EQ(FailAt(std::nullopt), Action::kWait);
    SitOutDelay();
  }
  EXPECT_EQ(policy_.suspect(), "n2");
  policy_.NoteSetAside();
  EXPECT_EQ(policy_.suspect(), "");
  for (int i = 0; i < 2; ++i) {
    Start();
    ASSERT_EQ(FailAt(std::nullopt), Action::kWait);
    SitOutDelay();
  }
}

TEST_F(PolicyTest, RegroupingIsNoRestart) {
  Start();
  Step(5);
  policy_.Regroup();
  EXPECT_EQ(Next(), Action::kTerminate);
  EXPECT_EQ(Next(), Action::kWait);
  EndAll({.exit_code = 130});
  EXPECT_EQ(Next(), Action::kWait);
  EXPECT_EQ(last_.until, now_);
  EXPECT_TRUE(policy_.regrouping());
  Start();
  EXPECT_FALSE(policy_.regrouping());
  EXPECT_EQ(policy_.restarts(), 0);
  EXPECT_FALSE(policy_.failure());
  ASSERT_EQ(FailAt(6), Action::kWait);
  SitOutDelay();
  Start();
  EXPECT_EQ(policy_.restarts(), 1);
}

TEST_F(PolicyTest, AStopWinsOverRegrouping) {
  Start();
  Step(5);
  policy_.Regroup();
  EXPECT_EQ(Next(), Action::kTerminate);
  EXPECT_EQ(Next(/*stop=*/true), Action::kWait);
  EndAll({.exit_code = 130});
  EXPECT_EQ(Next(/*stop=*/true), Action::kEnd);
  EXPECT_EQ(policy_.outcome().ending, JobOutcome::Ending::kInterrupted);
}

TEST_F(PolicyTest, AFailureWhileRanksAreAskedToRegroupIsAFailure) {
  Start();
  Step(5);
  policy_.Regroup();
  ranks_[0].exit = ExitState{.signal = 9};
  EXPECT_EQ(Next(), Action::kKill);
  EXPECT_FALSE(policy_.regrouping());
  EXPECT_TRUE(policy_.failure());
}

TEST_F(PolicyTest, AJobThatIsEndedForAReasonDoesNotReturn) {
  Start();
  Step(5);
  policy_.EndBecause("the cost limit is reached", false);
  policy_.EndBecause("the machine is taken away", true);
  EXPECT_EQ(Next(), Action::kTerminate);
  EndAll({.exit_code = 130});
  EXPECT_EQ(Next(), Action::kEnd);
  EXPECT_EQ(policy_.outcome().ending, JobOutcome::Ending::kInterrupted);
  EXPECT_FALSE(policy_.outcome().may_return);
  EXPECT_EQ(policy_.outcome().exit_status, 1);
  EXPECT_EQ(policy_.outcome().message, "the cost limit is reached; stopped at step 5");
}

TEST_F(PolicyTest, FailingAtTheSameStepIsFruitless) {
  for (int i = 0; i < 3; ++i) {
    Start();
    ASSERT_EQ(FailAt(57), Action::kWait);
    SitOutDelay();
  }
  Start();
  EXPECT_EQ(FailAt(57), Action::kEnd);
}

TEST_F(PolicyTest, FailingWhileCatchingUpIsNotFruitless) {
  for (std::uint64_t step : {57, 52, 55, 51, 53, 56, 54}) {
    Start();
    ASSERT_EQ(FailAt(step), Action::kWait);
    SitOutDelay();
  }
  EXPECT_EQ(policy_.best_step(), 57u);
}

TEST_F(PolicyTest, RestartsAreLimited) {
  for (std::uint64_t step = 1; step <= 10; ++step) {
    Start();
    ASSERT_EQ(FailAt(step), Action::kWait);
    SitOutDelay();
  }
  Start();
  EXPECT_EQ(FailAt(11), Action::kEnd);
  EXPECT_THAT(policy_.outcome().message, HasSubstr("max_restarts = 10"));
}

TEST_F(PolicyTest, DelaysGrowWithFruitlessAttempts) {
  Policy policy({.max_restarts = 100, .max_fruitless = 100}, Random(7));
  TimePoint now{};
  std::vector<RankState> ranks;
  Duration longest{0};
  for (int i = 0; i < 12; ++i) {
    ASSERT_EQ(policy.Next(now, ranks, false).action, Action::kStart);
    policy.Started(now, 1);
    ranks.assign(1, RankState{.exit = ExitState{.exit_code = 1}});
    auto decision = policy.Next(now, ranks, false);
    ASSERT_EQ(decision.action, Action::kWait);
    Duration limit = std::min<Duration>(milliseconds(250) * (2 << i), seconds(30));
    EXPECT_GE(decision.until - now, limit / 2);
    EXPECT_LE(decision.until - now, limit);
    longest = std::max(longest, Duration(decision.until - now));
    now = decision.until;
  }
  EXPECT_GT(longest, seconds(15));
}

TEST_F(PolicyTest, WrongUsageIsNotTriedAgain) {
  for (int status : {2, 4, 5}) {
    Policy policy({}, Random(1));
    std::vector<RankState> ranks;
    ASSERT_EQ(policy.Next(now_, ranks, false).action, Action::kStart);
    policy.Started(now_, 1);
    ranks.assign(1, RankState{.exit = ExitState{.exit_code = status}});
    EXPECT_EQ(policy.Next(now_, ranks, false).action, Action::kEnd);
    EXPECT_EQ(policy.outcome().exit_status, status);
  }
  Start();
  Step(3);
  Next();
  EndAll({.exit_code = 4});
  EXPECT_EQ(Next(), Action::kWait) << "once steps were made it may be a passing thing";
}

TEST_F(PolicyTest, WrongUsageIsNotTriedAgainThoughAnotherRankIsAtItsFirstStep) {
  Start();
  Step(0);
  EXPECT_EQ(Next(), Action::kWait);
  EndAll({.exit_code = 2});
  EXPECT_EQ(Next(), Action::kEnd);
  EXPECT_EQ(policy_.outcome().exit_status, 2);
}

TEST_F(PolicyTest, SilenceIsAHangAfterFiveOfTheLongestStepsButAtLeastHalfAMinute) {
  Start();
  Step(1, minutes(10));  // start-up is no step
  Next();
  EXPECT_EQ(policy_.hang_limit(), seconds(30));
  Step(2, seconds(20));
  Next();
  EXPECT_EQ(policy_.hang_limit(), seconds(100));
  EXPECT_EQ(last_.until, now_ + seconds(100));
  now_ = last_.until - milliseconds(1);
  EXPECT_EQ(Next(), Action::kWait);
  now_ += milliseconds(1);
  EXPECT_EQ(Next(), Action::kKill);
  EXPECT_TRUE(policy_.failure()->hang);
  EXPECT_EQ(policy_.failure()->silent, seconds(100));
  EndAll({.signal = 9});
  EXPECT_EQ(Next(), Action::kWait);
}

TEST_F(PolicyTest, OneSilentRankIsEnough) {
  Start();
  Step(1);
  Next();
  now_ += seconds(29);
  ++ranks_[0].beats;
  Next();
  now_ += seconds(1);
  EXPECT_EQ(Next(), Action::kKill);
  EXPECT_EQ(policy_.failure()->rank, 1);
}

TEST_F(PolicyTest, ASignOfLifeWithoutAStepIsEnough) {
  Start();
  Step(1);
  for (int i = 0; i < 100; ++i) {
    now_ += seconds(25);
    for (RankState& rank : ranks_) ++rank.beats;
    ASSERT_EQ(Next(), Action::kWait);
  }
}

TEST_F(PolicyTest, StartUpHasALimitOfItsOwn) {
  Start();
  now_ += minutes(29);
  EXPECT_EQ(Next(), Action::kWait);
  now_ += minutes(1);
  EXPECT_EQ(Next(), Action::kKill);
  EXPECT_THAT(policy_.failure()->what, HasSubstr("before its first step"));
}

TEST_F(PolicyTest, AGivenHangTimeoutWins) {
  Policy policy({.hang_timeout = seconds(2)}, Random(1));
  std::vector<RankState> ranks;
  policy.Next(now_, ranks, false);
  policy.Started(now_, 1);
  ranks.assign(1, RankState{.step = 1, .beats = 1});
  EXPECT_EQ(policy.Next(now_, ranks, false).until, now_ + seconds(2));
}

TEST_F(PolicyTest, RanksThatStayBehindWhenOthersHaveFinishedAreAFailure) {
  Start();
  Step(9);
  ranks_[0].exit = ExitState{};
  EXPECT_EQ(Next(), Action::kWait);
  for (int i = 0; i < 12; ++i) {
    now_ += seconds(10);
    ++ranks_[1].beats;
    if (i < 11) {
      ASSERT_EQ(Next(), Action::kWait);
    }
  }
  EXPECT_EQ(Next(), Action::kKill);
  EndAll({.signal = 9});
  EXPECT_EQ(Next(), Action::kWait);
}

TEST_F(PolicyTest, StopLetsRanksSaveAndLeave) {
  Start();
  Step(4);
  EXPECT_EQ(Next(true), Action::kTerminate);
  EXPECT_EQ(Next(true), Action::kWait);
  EXPECT_EQ(last_.until, now_ + seconds(120));
  now_ += seconds(5);
  EndAll({.exit_code = 130});
  EXPECT_EQ(Next(true), Action::kEnd);
  EXPECT_EQ(policy_.outcome().ending, JobOutcome::Ending::kInterrupted);
  EXPECT_EQ(policy_.outcome().exit_status, 130);
  EXPECT_EQ(policy_.outcome().message, "stopped at step 4; the same command continues from the last checkpoint");
}

TEST_F(PolicyTest, RanksThatDoNotLeaveInTimeAreKilled) {
  Start();
  EXPECT_EQ(Next(true), Action::kTerminate);
  now_ += seconds(120);
  EXPECT_EQ(Next(true), Action::kKill);
  EXPECT_EQ(Next(true), Action::kWait);
  EndAll({.signal = 9});
  EXPECT_EQ(Next(true), Action::kEnd);
  EXPECT_EQ(policy_.outcome().ending, JobOutcome::Ending::kInterrupted);
}

TEST_F(PolicyTest, StopDuringTheDelayEndsAtOnce) {
  Start();
  EXPECT_EQ(FailAt(5), Action::kWait);
  EXPECT_EQ(Next(true), Action::kEnd);
  EXPECT_EQ(policy_.outcome().ending, JobOutcome::Ending::kInterrupted);
  EXPECT_EQ(Policy({}, Random(1)).Next(now_, {}, true).action, Action::kEnd);
}

TEST_F(PolicyTest, RanksThatCannotBeStartedAreFinal) {
  ASSERT_EQ(Next(), Action::kStart);
  policy_.StartFailed(now_, Error(Code::kNotFound, "no such program"));
  EXPECT_EQ(Next(), Action::kEnd);
  EXPECT_EQ(policy_.outcome().exit_status, 4);
  EXPECT_THAT(policy_.outcome().message, HasSubstr("no such program"));
}

TEST_F(PolicyTest, RanksThatCannotBeStartedNowAreStartedLater) {
  for (int failed = 1; failed <= 2; ++failed) {
    ASSERT_EQ(Next(), Action::kStart);
    policy_.StartFailed(now_, Error(Code::kUnavailable, "node n3 does not answer"));
    EXPECT_EQ(policy_.attempt(), failed);
    ASSERT_TRUE(policy_.failure());
    EXPECT_THAT(policy_.failure()->what, HasSubstr("node n3 does not answer"));
    const auto waiting = policy_.Next(now_, {}, false);
    EXPECT_EQ(waiting.action, Action::kWait);
    now_ = waiting.until;
  }
  Start();
  EXPECT_FALSE(policy_.failure());
}

TEST_F(PolicyTest, RanksThatCanNeverBeStartedEndTheJob) {
  for (int failed = 1; failed <= 3; ++failed) {
    ASSERT_EQ(Next(), Action::kStart);
    policy_.StartFailed(now_, Error(Code::kUnavailable, "node n3 does not answer"));
    now_ += std::chrono::minutes(1);
  }
  EXPECT_EQ(Next(), Action::kEnd);
  EXPECT_THAT(policy_.outcome().message, HasSubstr("node n3 does not answer"));
}

TEST_F(PolicyTest, MachinesThatAreAwayAreWaitedFor) {
  Policy policy({.max_restarts = 0, .start_patience = minutes(5)}, Random(1));
  const Error away(Code::kUnavailable, "node n3 does not answer");
  const TimePoint begin = now_;
  int starts = 0;
  for (; now_ - begin < minutes(4); ++starts) {
    ASSERT_EQ(policy.Next(now_, {}, false).action, Action::kStart);
    policy.StartFailed(now_, away);
    EXPECT_TRUE(policy.waiting());
    const auto wait = policy.Next(now_, {}, false);
    ASSERT_EQ(wait.action, Action::kWait);
    EXPECT_LE(wait.until - now_, seconds(5));
    now_ = wait.until;
  }
  EXPECT_GT(starts, 48);
  EXPECT_EQ(policy.attempt(), 0);
  ASSERT_EQ(policy.Next(now_, {}, false).action, Action::kStart);
  policy.Started(now_, 1);
  EXPECT_FALSE(policy.waiting());
  EXPECT_EQ(policy.attempt(), 1);
}

TEST_F(PolicyTest, MachinesThatStayAwayEndTheJob) {
  Policy policy({.max_restarts = 10, .start_patience = minutes(5)}, Random(1));
  for (const Duration after : {seconds(0), seconds(299), seconds(300)}) {
    ASSERT_EQ(policy.Next(now_ + after, {}, false).action, Action::kStart);
    policy.StartFailed(now_ + after, Error(Code::kUnavailable, "node n3 does not answer"));
  }
  EXPECT_EQ(policy.Next(now_ + minutes(6), {}, false).action, Action::kEnd);
  EXPECT_FALSE(policy.waiting());
  EXPECT_THAT(policy.outcome().message, HasSubstr("for 5m"));
  EXPECT_THAT(policy.outcome().message, HasSubstr("node n3 does not answer"));
}

/// A program that tells no steps.
class SilentPolicyTest : public PolicyTest {
 protected:
  SilentPolicyTest() : PolicyTest({.max_restarts = 5, .reports_steps = false, .hang_timeout = seconds(60)}) {}
};

TEST_F(SilentPolicyTest, EveryAttemptMayHaveBeenUseful) {
  Start();
  for (int restart = 0; restart < 5; ++restart) {
    EXPECT_EQ(FailAt(std::nullopt), Action::kWait);
    SitOutDelay();
    Start();
  }
  EXPECT_EQ(FailAt(std::nullopt), Action::kEnd);
  EXPECT_THAT(policy_.outcome().message, HasSubstr("run.max_restarts = 5"));
  EXPECT_THAT(policy_.outcome().message, testing::Not(HasSubstr("before its first step")));
}

TEST_F(SilentPolicyTest, WrongUsageIsFinalAtFirst) {
  Start();
  EndAll({.exit_code = 2});
  EXPECT_EQ(Next(), Action::kEnd);
  EXPECT_EQ(policy_.outcome().exit_status, 2);
}

TEST_F(SilentPolicyTest, WhatRanOnceIsNoWrongUsage) {
  Start();
  EXPECT_EQ(FailAt(std::nullopt), Action::kWait);
  SitOutDelay();
  Start();
  EndAll({.exit_code = 2});
  EXPECT_EQ(Next(), Action::kWait);
}

TEST_F(SilentPolicyTest, AGivenLimitOfSilenceHoldsFromTheFirstSignOfLife) {
  Start();
  now_ += seconds(90);
  EXPECT_EQ(Next(), Action::kWait) << "it loads its libraries";
  for (RankState& rank : ranks_) ++rank.beats;
  EXPECT_EQ(Next(), Action::kWait);
  now_ += seconds(61);
  EXPECT_EQ(Next(), Action::kKill);
  EXPECT_TRUE(policy_.failure()->hang);
}

}  // namespace
}  // namespace millrace::jobs
