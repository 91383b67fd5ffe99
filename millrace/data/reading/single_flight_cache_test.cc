#include "millrace/data/reading/single_flight_cache.h"

#include <gtest/gtest.h>

#include <atomic>
#include <latch>
#include <thread>
#include <vector>

namespace millrace::data {
namespace {

using Cache = SingleFlightCache<int, int>;

auto Makes(int value, std::uint64_t cost, int* calls = nullptr) {
  return [=]() -> Result<Cache::MadeValue> {
    if (calls) ++*calls;
    return {{std::make_shared<int>(value), cost}};
  };
}

TEST(SingleFlightCache, KeepsTheRecentlyUsedWithinItsCapacity) {
  Cache cache(10);
  for (int key : {1, 2, 3}) EXPECT_EQ(**cache.Get(key, {}, Makes(key, 3)), key);
  int calls = 0;
  EXPECT_EQ(**cache.Get(1, {}, Makes(-1, 3, &calls)), 1);
  EXPECT_EQ(calls, 0);
  EXPECT_EQ(**cache.Get(4, {}, Makes(4, 3)), 4);
  EXPECT_FALSE(cache.Has(2)) << "the least recently used one had to go";
  EXPECT_TRUE(cache.Has(1) && cache.Has(3) && cache.Has(4));
  auto large = *cache.Get(5, {}, Makes(5, 100));
  EXPECT_EQ(*large, 5) << "what does not fit is handed out all the same";
  EXPECT_FALSE(cache.Has(5));
}

TEST(SingleFlightCache, ManyThreadsOneFlight) {
  Cache cache(1000);
  std::atomic<int> made = 0, sum = 0;
  std::latch inside(1), waiting(8);
  std::vector<std::thread> threads;
  threads.emplace_back([&] {
    auto got = cache.Get(1, {}, [&]() -> Result<Cache::MadeValue> {
      ++made;
      inside.count_down();
      waiting.wait();
      return {{std::make_shared<int>(7), 1}};
    });
    sum += **got;
  });
  inside.wait();
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      waiting.count_down();
      sum += **cache.Get(1, {}, [&]() -> Result<Cache::MadeValue> {
        ++made;
        return {{std::make_shared<int>(7), 1}};
      });
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(made, 1);
  EXPECT_EQ(sum, 63);
}

TEST(SingleFlightCache, AFailureIsItsMakersAlone) {
  Cache cache(1000);
  std::latch inside(1), go(1);
  std::thread first([&] {
    auto failed = cache.Get(1, {}, [&]() -> Result<Cache::MadeValue> {
      inside.count_down();
      go.wait();
      return Fail(Code::kCancelled, "interrupted");
    });
    EXPECT_EQ(failed.error().code(), Code::kCancelled);
  });
  inside.wait();
  std::thread second([&] { EXPECT_EQ(**cache.Get(1, {}, Makes(5, 1)), 5); });
  go.count_down();
  first.join();
  second.join();
  EXPECT_TRUE(cache.Has(1));
}

TEST(SingleFlightCache, WaitingCanBeInterrupted) {
  Cache cache(1000);
  std::latch inside(1), go(1);
  std::thread maker([&] {
    (void)cache.Get(1, {}, [&]() -> Result<Cache::MadeValue> {
      inside.count_down();
      go.wait();
      return {{std::make_shared<int>(7), 1}};
    });
  });
  inside.wait();
  std::stop_source stop;
  stop.request_stop();
  EXPECT_EQ(cache.Get(1, stop.get_token(), Makes(0, 1)).error().code(), Code::kCancelled);
  go.count_down();
  maker.join();
}

}  // namespace
}  // namespace millrace::data
