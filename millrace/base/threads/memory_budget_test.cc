#include "millrace/base/threads/memory_budget.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "millrace/base/hash/random.h"

namespace millrace {
namespace {

using Priority = MemoryBudget::Priority;

TEST(MemoryBudget, GivesAndTakesBack) {
  MemoryBudget budget(1000);
  Reservation a = *budget.Acquire(600);
  EXPECT_FALSE(budget.TryAcquire(500, Priority::kForeground));
  a.ShrinkTo(100);
  EXPECT_EQ(budget.used(), 100u);
  {
    Reservation b = *budget.Acquire(900);
    EXPECT_EQ(budget.used(), 1000u);
    a = std::move(b);
    EXPECT_EQ(budget.used(), 900u);  // what a held went back
  }
  a.Release();
  EXPECT_EQ(budget.used(), 0u);
  EXPECT_EQ(budget.peak(), 1000u);
}

TEST(MemoryBudget, RefusesWhatCanNeverFit) {
  MemoryBudget budget(10);
  EXPECT_EQ(budget.Acquire(11).error().code(), Code::kResourceExhausted);
}

TEST(MemoryBudget, SpeculationLeavesAnEighthFree) {
  MemoryBudget budget(800);
  auto a = budget.TryAcquire(700, Priority::kSpeculative);
  EXPECT_TRUE(a);
  EXPECT_FALSE(budget.TryAcquire(1, Priority::kSpeculative));
  EXPECT_TRUE(budget.TryAcquire(100, Priority::kForeground));
}

TEST(MemoryBudget, StopEndsAWaitAndTheNextInLineGoesOn) {
  MemoryBudget budget(10);
  Reservation all = *budget.Acquire(10);
  std::stop_source stop;
  std::thread first([&] { EXPECT_EQ(budget.Acquire(10, stop.get_token()).error().code(), Code::kCancelled); });
  std::thread second([&] { EXPECT_TRUE(budget.Acquire(4)); });
  stop.request_stop();
  first.join();
  all.Release();
  second.join();
}

TEST(MemoryBudget, NeverExceededUnderContention) {
  MemoryBudget budget(64);
  std::vector<std::thread> threads;
  for (std::uint64_t t = 0; t < 6; ++t)
    threads.emplace_back([&, t] {
      Random random(t);
      for (int i = 0; i < 500; ++i) {
        auto reservation = budget.Acquire(1 + random.Below(64));
        ASSERT_TRUE(reservation);
        ASSERT_LE(budget.used(), 64u);
      }
    });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(budget.used(), 0u);
  EXPECT_LE(budget.peak(), 64u);
}

}  // namespace
}  // namespace millrace
