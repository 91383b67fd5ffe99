#include "millrace/base/threads/task_scope.h"

#include <gtest/gtest.h>

#include <atomic>

namespace millrace {
namespace {

TEST(TaskScope, DestructionStopsAndJoins) {
  std::atomic<int> ended = 0;
  {
    TaskScope scope;
    for (int i = 0; i < 3; ++i)
      scope.Spawn("a name longer than the system shows", [&](std::stop_token stop) {
        Channel<int> never(1);
        EXPECT_FALSE(never.Pop(stop));
        ++ended;
      });
  }
  EXPECT_EQ(ended, 3);
}

TEST(TaskScope, JoinWaitsWithoutStopping) {
  std::atomic<int> ended = 0;
  TaskScope scope;
  scope.Spawn("t", [&](std::stop_token stop) {
    EXPECT_FALSE(stop.stop_requested());
    ++ended;
  });
  scope.Join();
  EXPECT_EQ(ended, 1);
}

TEST(ThreadPool, RunsEverythingQueuedBeforeItEnds) {
  std::atomic<int> done = 0;
  {
    ThreadPool pool("worker", 3, 2);
    for (int i = 0; i < 500; ++i) pool.Submit([&] { ++done; });
  }
  EXPECT_EQ(done, 500);
}

}  // namespace
}  // namespace millrace
