#include "millrace/transfer/plan/batch.h"

#include <gtest/gtest.h>

#include <set>
#include <thread>

namespace millrace::transfer {
namespace {

TEST(Batch, ReportsEveryItemOnce) {
  std::set<std::string> done, failed;
  int unneeded = 0;
  Batch batch(4, {}, [&](const Batch::Outcome& outcome) {
    (outcome.status ? done : failed).insert(outcome.source);
    unneeded += !outcome.needed;
  });
  for (int i = 0; i < 200; ++i) {
    batch.Add(std::to_string(i), "to", 10, [i](const object::Call&) -> Result<bool> {
      if (i % 50 == 7) return Fail(Code::kUnavailable, "item {}", i);
      return i % 50 != 8;
    });
  }
  batch.AddFailure("bad", "to", Error(Code::kInvalidArgument, "no name"));
  batch.Finish();
  EXPECT_EQ(done.size(), 196u);
  EXPECT_EQ(unneeded, 4);
  EXPECT_EQ(failed, std::set<std::string>({"7", "57", "107", "157", "bad"}));
  EXPECT_EQ(batch.counters().items_failed, 5u);
  EXPECT_EQ(batch.counters().items_known, 201u);
  EXPECT_EQ(batch.counters().bytes_known, 2000u);
}

TEST(Batch, OneJobNeedsNoThread) {
  std::thread::id ran_on;
  Batch batch(8, {}, [](const Batch::Outcome&) {});
  batch.Add("a", "b", 1, [&](const object::Call&) -> Result<bool> {
    ran_on = std::this_thread::get_id();
    return true;
  });
  batch.Finish();
  EXPECT_EQ(ran_on, std::this_thread::get_id());
}

TEST(Batch, JobsRunSideBySide) {
  constexpr int kWorkers = 4;
  Mutex mutex;
  CondVar met;
  int there = 0;
  Batch batch(kWorkers, {}, [](const Batch::Outcome&) {});
  for (int i = 0; i < kWorkers; ++i) {
    batch.Add("a", "b", 1, [&](const object::Call&) -> Result<bool> {  // each waits for all the others
      MutexLock lock(mutex);
      ++there;
      met.NotifyAll();
      while (there < kWorkers) met.Wait(mutex);
      return true;
    });
  }
  batch.Finish();
  EXPECT_EQ(there, kWorkers);
}

TEST(Batch, AGroupHasAnOutcomeForEachItem) {
  std::string outcomes;
  Batch batch(2, {}, [&](const Batch::Outcome& outcome) {
    outcomes += outcome.source + outcome.destination + (outcome.status ? "+" : "-");
  });
  batch.AddMany({"a", "b", "c"}, true,
                [](const object::Call&) { return std::vector<Status>{{}, Fail(Code::kPermissionDenied, "no"), {}}; });
  batch.Finish();
  EXPECT_EQ(outcomes, "a+b-c+");
  EXPECT_EQ(batch.counters().items_failed, 1u);
}

TEST(Batch, WaitingLeavesItOpen) {
  std::atomic<int> done = 0;
  Batch batch(4, {}, [](const Batch::Outcome&) {});
  for (int round = 1; round <= 2; ++round) {
    for (int i = 0; i < 50; ++i)
      batch.Add("s", "d", 1, [&](const object::Call&) -> Result<bool> { return ++done > 0; });
    batch.Wait();
    EXPECT_EQ(done, 50 * round);
  }
}

TEST(Batch, AStopEndsItInOrder) {
  std::stop_source stop;
  int cancelled = 0, done = 0;
  Batch batch(1, stop.get_token(), [&](const Batch::Outcome& outcome) {
    if (outcome.status) ++done;
    if (!outcome.status && outcome.status.error().code() == Code::kCancelled) ++cancelled;
  });
  batch.Add("first", "", 0, [&](const object::Call& call) -> Result<bool> {
    stop.request_stop();
    if (!call.stop.stop_requested()) return Fail(Code::kInternal, "the job did not see the stop");
    return true;
  });
  for (int i = 0; i < 3; ++i) batch.Add("late", "", 0, [](const object::Call&) -> Result<bool> { return true; });
  batch.Finish();
  EXPECT_EQ(done, 1);
  EXPECT_LE(cancelled, 3);
  EXPECT_EQ(batch.counters().items_done, batch.counters().items_known);
}

}  // namespace
}  // namespace millrace::transfer
