#include "millrace/base/threads/parallel_for.h"

#include <gtest/gtest.h>

#include <vector>

namespace millrace {
namespace {

TEST(ParallelFor, CallsEveryNumberOnce) {
  std::vector<std::atomic<int>> calls(1000);
  std::atomic<int> workers = 0;
  auto done = ParallelFor("test", calls.size(), 4, {}, [&] {
    ++workers;
    return [&](std::uint64_t i, std::stop_token) -> Status {
      ++calls[i];
      return {};
    };
  });
  EXPECT_TRUE(done.has_value());
  EXPECT_EQ(workers, 4);
  for (const auto& count : calls) EXPECT_EQ(count, 1);
}

TEST(ParallelFor, StartsNoMoreThreadsThanThereAreNumbers) {
  std::atomic<int> workers = 0;
  auto work = [&] {
    ++workers;
    return [](std::uint64_t, std::stop_token) -> Status { return {}; };
  };
  EXPECT_TRUE(ParallelFor("test", 0, 4, {}, work).has_value());
  EXPECT_EQ(workers, 0);
  EXPECT_TRUE(ParallelFor("test", 1, 4, {}, work).has_value());
  EXPECT_EQ(workers, 1);
}

TEST(ParallelFor, AFailureStopsTheRestAndIsReturned) {
  std::atomic<std::uint64_t> calls = 0;
  auto done = ParallelFor("test", 1'000'000, 2, {}, [&] {
    return [&](std::uint64_t i, std::stop_token) -> Status {
      ++calls;
      if (i == 10) return Fail(Code::kCorrupt, "number ten");
      return {};
    };
  });
  ASSERT_FALSE(done.has_value());
  EXPECT_EQ(done.error().code(), Code::kCorrupt);
  EXPECT_LT(calls, 1'000'000);
}

TEST(ParallelFor, AStopTokenCancels) {
  std::stop_source stop;
  auto done = ParallelFor("test", 1'000'000, 2, stop.get_token(), [&] {
    return [&](std::uint64_t i, std::stop_token) -> Status {
      if (i == 10) stop.request_stop();
      return {};
    };
  });
  ASSERT_FALSE(done.has_value());
  EXPECT_EQ(done.error().code(), Code::kCancelled);
}

}  // namespace
}  // namespace millrace
