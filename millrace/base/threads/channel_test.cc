#include "millrace/base/threads/channel.h"

#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <thread>
#include <vector>

namespace millrace {
namespace {

TEST(Channel, KeepsOrderAndDrainsAfterClose) {
  Channel<int> channel(4);
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(channel.Push(i));
  int extra = 9;
  EXPECT_FALSE(channel.TryPush(extra));
  channel.Close();
  EXPECT_FALSE(channel.Push(5));
  for (int i = 0; i < 4; ++i) EXPECT_EQ(channel.Pop(), i);
  EXPECT_EQ(channel.Pop(), std::nullopt);
}

TEST(Channel, StopReleasesBothSides) {
  Channel<std::unique_ptr<int>> channel(1);
  std::stop_source stop;
  std::thread consumer([&] { EXPECT_FALSE(channel.Pop(stop.get_token())); });
  stop.request_stop();
  consumer.join();
  EXPECT_TRUE(channel.Push(std::make_unique<int>(1)));
  EXPECT_FALSE(channel.Push(std::make_unique<int>(2), stop.get_token()));
  EXPECT_EQ(channel.size(), 1u);
}

TEST(Channel, ManyProducersAndConsumersLoseNothing) {
  constexpr int kEach = 2000, kThreads = 4;
  Channel<int> channel(3);
  std::vector<std::thread> producers, consumers;
  std::vector<std::int64_t> sums(kThreads);
  for (int t = 0; t < kThreads; ++t) {
    producers.emplace_back([&] {
      for (int i = 1; i <= kEach; ++i) channel.Push(i);
    });
    consumers.emplace_back([&, t] {
      while (auto item = channel.Pop()) sums[static_cast<std::size_t>(t)] += *item;
    });
  }
  for (auto& p : producers) p.join();
  channel.Close();
  for (auto& c : consumers) c.join();
  EXPECT_EQ(std::accumulate(sums.begin(), sums.end(), std::int64_t{0}),
            std::int64_t{kThreads} * kEach * (kEach + 1) / 2);
}

}  // namespace
}  // namespace millrace
