#include "millrace/data/reading/read_ahead.h"

#include <gtest/gtest.h>

#include <deque>

namespace millrace::data {
namespace {

/// Simulates a store with a fixed latency, and a consumer that takes chunks at a fixed rate.
class Model {
 public:
  explicit Model(int most) : depth_(most) {}

  struct Outcome {
    int late = 0, changes = 0, depth = 0;
  };
  Outcome Run(int chunks, double latency, double step) {
    Outcome outcome;
    for (int i = 0; i < chunks; ++i) {
      Fill(latency);
      const int before = depth_.now();
      const bool in_time = arrivals_.front() <= time_;
      depth_.Needed(in_time);
      outcome.late += in_time ? 0 : 1;
      outcome.changes += depth_.now() != before ? 1 : 0;
      time_ = std::max(time_, arrivals_.front()) + step;
      arrivals_.pop_front();
    }
    outcome.depth = depth_.now();
    return outcome;
  }

 private:
  /// Starts requests while fewer than the depth are under way. Chunks that have arrived wait for the consumer.
  void Fill(double latency) {
    constexpr std::size_t kWindow = 64;
    while (arrivals_.size() < kWindow) {
      // The request `depth` places before must have been answered.
      double start = time_;
      if (arrivals_.size() >= static_cast<std::size_t>(depth_.now())) {
        start = std::max(start, arrivals_[arrivals_.size() - static_cast<std::size_t>(depth_.now())]);
      }
      if (start > time_) break;
      arrivals_.push_back(start + latency);
    }
    if (arrivals_.empty()) arrivals_.push_back(time_ + latency);
  }

  ReadAheadDepth depth_;
  std::deque<double> arrivals_;
  double time_ = 0;
};

TEST(ReadAheadDepth, GrowsToWhatAFastConsumerNeedsAndRestsThere) {
  Model model(16);
  model.Run(2000, 10, 1);
  const auto settled = model.Run(20'000, 10, 1);  // ten are needed
  EXPECT_GE(settled.depth, 9);
  EXPECT_LE(settled.depth, 13);
  EXPECT_LT(settled.changes, 40) << "no swinging to and fro";
  EXPECT_LT(settled.late, 40);
}

TEST(ReadAheadDepth, ShrinksForASlowConsumerAndGrowsAgain) {
  Model model(16);
  EXPECT_GT(model.Run(1000, 15, 1).depth, 12);
  EXPECT_EQ(model.Run(50'000, 15, 30).depth, ReadAheadDepth::kLeast);
  const auto again = model.Run(200, 15, 1);
  EXPECT_GT(again.depth, 12);
  EXPECT_LT(again.late, 60) << "growing is quick";
}

TEST(ReadAheadDepth, StaysWithinItsBounds) {
  for (int most : {0, 1, 3, 4, 16}) {
    ReadAheadDepth depth(most);
    for (int i = 0; i < 1000; ++i) {
      depth.Needed(i % 7 == 0);
      EXPECT_LE(depth.now(), std::max(most, 1));
      EXPECT_GE(depth.now(), 1);
    }
    for (int i = 0; i < 1'000'000; ++i) depth.Needed(true);
    EXPECT_EQ(depth.now(), std::max(1, std::min(most, ReadAheadDepth::kLeast)));
  }
}

}  // namespace
}  // namespace millrace::data
