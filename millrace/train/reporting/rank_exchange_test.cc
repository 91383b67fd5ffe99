#include "millrace/train/reporting/rank_exchange.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <thread>

#include "millrace/base/files/files.h"
#include "millrace/collectives/connect.h"

namespace millrace::train {
namespace {

using std::chrono::seconds;

/// The figures that two ranks gather. Rank 1 is on a GPU whose load `gpu` reads.
std::vector<history::RankFigures> Gather(std::shared_ptr<const nvml::GpuMeter> gpu) {
  auto groups = collectives::ConnectThreads(2);
  std::vector<history::RankFigures> figures;
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      FakeClock clock;
      const RankPlace place{.stage = rank, .gpu = rank == 1 ? gpu : nullptr};
      auto exchange = RankExchange::Make(*groups[static_cast<std::size_t>(rank)], seconds(1), place, clock);
      ASSERT_TRUE(exchange) << exchange.error().ToString();
      clock.Advance(seconds(1));
      const auto gathered = exchange->AfterStep({.step = 1, .step_s = 1.0 + rank});
      ASSERT_TRUE(gathered && *gathered);
      if (rank == 0) figures = **gathered;
    });
  }
  threads.clear();
  return figures;
}

TEST(RankExchangeTest, GathersTheLoadOfGpus) {
  const TempDir folder = *TempDir::Create();
  std::ofstream(folder.path() / "devices") << "0 0 0 0 0 0\n";
  ::setenv("FAKE_NVML", (folder.path() / "devices").c_str(), 1);
  const auto figures = Gather(nvml::GpuMeter::Open(MILLRACE_FAKE_NVML, "0000:00:00.0"));
  ::unsetenv("FAKE_NVML");
  ASSERT_EQ(figures.size(), 2);
  EXPECT_FALSE(figures[0].gpu.any());
  EXPECT_EQ(figures[1].gpu.utilization, 0.97);
  EXPECT_EQ(figures[1].gpu.celsius, 61);
  EXPECT_EQ(figures[1].gpu.watts, 412.3);
  EXPECT_EQ(figures[0].times.step, 1);
  EXPECT_EQ(figures[1].times.step, 2);
  EXPECT_EQ(figures[1].stage, 1);
}

}  // namespace
}  // namespace millrace::train
