#include "millrace/data/simulate.h"

#include <gtest/gtest.h>

#include "millrace/base/hash/random.h"

namespace millrace::data {
namespace {

std::uint64_t Megabyte(std::uint32_t) { return 1'000'000; }

/// Returns `count` batches. Each needs one new chunk.
std::vector<BatchNeeds> Batches(std::uint32_t count, std::uint64_t bytes) {
  std::vector<BatchNeeds> batches;
  for (std::uint32_t b = 0; b < count; ++b) batches.push_back({{b}, bytes});
  return batches;
}

TEST(Simulate, AFastStoreIsWaitedForOnce) {
  auto forecast = Simulate(Batches(100, 1000), Megabyte,
                           {.bandwidth = 1e9, .latency = 0.05, .step = 0.02, .seconds_per_byte = 1e-6});
  EXPECT_NEAR(forecast.first_batch, 0.05 + 0.001 + 0.001, 1e-9);
  EXPECT_NEAR(forecast.waited, forecast.first_batch, 1e-9);
  EXPECT_NEAR(forecast.seconds, forecast.first_batch + 100 * 0.02, 1e-9);
  EXPECT_NEAR(forecast.waited_on_network, 0.051, 1e-9);
}

TEST(Simulate, ANarrowLinkIsTheRate) {
  auto forecast = Simulate(Batches(200, 10), Megabyte, {.bandwidth = 10e6, .latency = 0.01, .step = 0.02});
  EXPECT_NEAR(forecast.seconds, 200 * 0.1, 0.2) << "a chunk takes 100 ms";
  EXPECT_NEAR(forecast.stall_share(), 0.8, 0.01);
  EXPECT_GT(forecast.waited_on_network / forecast.waited, 0.99);
}

TEST(Simulate, LatencyIsHiddenByRequestsAtATime) {
  SimulationParameters parameters{.bandwidth = 1e12, .latency = 0.1, .step = 0.02, .requests = 1};
  EXPECT_NEAR(Simulate(Batches(200, 10), Megabyte, parameters).seconds, 200 * 0.1, 0.2);
  parameters.requests = 5;
  EXPECT_NEAR(Simulate(Batches(200, 10), Megabyte, parameters).seconds, 200 * 0.02 + 0.1, 0.02);
}

TEST(Simulate, SlowTokenizingIsTheRateOfItsThreads) {
  SimulationParameters parameters{.latency = 0, .step = 0.01, .seconds_per_byte = 1e-4, .threads = 2};
  auto forecast = Simulate(Batches(100, 1000), Megabyte, parameters);
  EXPECT_NEAR(forecast.seconds, 100 * 0.05, 0.15);
  EXPECT_GT(forecast.waited_on_encoding / forecast.waited, 0.95);
  parameters.threads = 10;
  parameters.prefetch_batches = 20;
  EXPECT_NEAR(Simulate(Batches(100, 1000), Megabyte, parameters).seconds, 100 * 0.01 + 0.1, 0.15);
}

/// More of any resource never makes the wait longer.
TEST(Simulate, MoreIsNeverWorse) {
  Random random(3);
  for (int round = 0; round < 100; ++round) {
    std::vector<BatchNeeds> batches;
    std::uint32_t chunk = 0;
    for (int b = 0; b < 60; ++b) {
      BatchNeeds& needs = batches.emplace_back();
      for (std::uint64_t n = random.Below(b == 0 ? 20 : 3); n > 0; --n) needs.chunks.push_back(chunk++);
      needs.bytes = random.Below(10'000);
    }
    SimulationParameters parameters{.bandwidth = 1e6 * static_cast<double>(1 + random.Below(500)),
                                    .latency = 1e-3 * static_cast<double>(random.Below(200)),
                                    .step = 1e-3 * static_cast<double>(1 + random.Below(100)),
                                    .seconds_per_byte = 1e-7 * static_cast<double>(random.Below(100)),
                                    .threads = static_cast<int>(1 + random.Below(4)),
                                    .requests = static_cast<int>(1 + random.Below(16)),
                                    .prefetch_batches = static_cast<int>(1 + random.Below(8)),
                                    .cache_bytes = 1'000'000 * (1 + random.Below(50))};
    auto base = Simulate(batches, Megabyte, parameters);
    EXPECT_NEAR(base.waited, base.waited_on_network + base.waited_on_encoding, 1e-6);
    EXPECT_NEAR(base.seconds, base.waited + 60 * parameters.step, 1e-6);
    SimulationParameters wider = parameters, nearer = parameters, faster = parameters;
    wider.bandwidth *= 2;
    nearer.latency /= 2;
    faster.seconds_per_byte /= 2;
    for (const SimulationParameters& better : {wider, nearer, faster}) {
      EXPECT_LE(Simulate(batches, Megabyte, better).waited, base.waited + 1e-9);
    }
  }
}

}  // namespace
}  // namespace millrace::data
