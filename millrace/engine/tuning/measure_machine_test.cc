#include "millrace/engine/tuning/measure_machine.h"

#include <gtest/gtest.h>

namespace millrace::engine {
namespace {

/// Each look at it is later than the last one, by 2 seconds and then by one second more each time.
class SlowingClock final : public Clock {
 public:
  TimePoint Now() const override { return now_ += step_ += std::chrono::seconds(1); }
  WallTime Wall() const override { return {}; }
  bool SleepUntil(TimePoint, std::stop_token) override { return false; }

 private:
  mutable TimePoint now_;
  mutable Duration step_ = std::chrono::seconds(1);
};

TEST(MeasureMachine, ARateIsThatOfTheMedianTime) {
  SlowingClock clock;
  const MachineRates rates = MeasureMachine(clock, {.tokens = 4, .side = 8, .elements = 100, .rounds = 3});
  // The looks are 2, 3, 4, … seconds apart. Each round has eight: the second of a pair ends a measurement.
  EXPECT_DOUBLE_EQ(rates.f32, 3 * 2.0 * 4 * 8 * 8 / 11);
  EXPECT_DOUBLE_EQ(rates.bf16, 3 * 2.0 * 4 * 8 * 8 / 13);
  EXPECT_DOUBLE_EQ(rates.memory_bandwidth, 3.0 * 4 * 100 / 15);
  EXPECT_DOUBLE_EQ(rates.link_bandwidth, 4.0 * 100 / 17);
}

}  // namespace
}  // namespace millrace::engine
