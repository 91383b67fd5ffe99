#include "millrace/serve/prompt_pace.h"

#include <gtest/gtest.h>

#include <random>

namespace millrace::serve {
namespace {

constexpr PromptPace::Options kOptions{.first = 64, .least = 8, .most = 256, .slowdown = 2, .unnoticed = Duration(0)};

/// A machine whose steps take `fixed` and `each` for a token.
struct Machine {
  Duration fixed, each;
  Duration Time(std::size_t tokens) const { return fixed + each * static_cast<int>(tokens); }
  /// Steps as a scheduler makes them, so that medians have seen the new pace.
  void Run(PromptPace& pace, std::size_t waiting, int steps = 100) const {
    for (int i = 0; i < steps; ++i) {
      const std::size_t prompt = i % 2 == 0 ? 0 : pace.Tokens(waiting);
      pace.AddStep(waiting, prompt, Time(waiting + prompt));
    }
  }
};

TEST(PromptPace, AStepWithPromptsTakesTwiceAsLong) {
  const Machine machine{.fixed = std::chrono::milliseconds(20), .each = std::chrono::milliseconds(1)};
  PromptPace pace(kOptions);
  EXPECT_EQ(pace.Tokens(4), 64) << "nothing is known yet";
  machine.Run(pace, 4);
  EXPECT_NEAR(static_cast<double>(pace.Tokens(4)), 24, 1);
}

TEST(PromptPace, MoreTextsThanUsualLeaveLessRoom) {
  const Machine machine{.fixed = std::chrono::milliseconds(20), .each = std::chrono::milliseconds(1)};
  PromptPace pace(kOptions);
  machine.Run(pace, 4);
  EXPECT_NEAR(static_cast<double>(pace.Tokens(12)), 16, 1) << "48 ms, of which 12 texts take 32";
  EXPECT_NEAR(static_cast<double>(pace.Tokens(1)), 27, 1);
  EXPECT_EQ(pace.Tokens(60), kOptions.least);
  machine.Run(pace, 12, 1000);
  EXPECT_NEAR(static_cast<double>(pace.Tokens(12)), 32, 1) << "more texts have become usual";
  // One text that is alone in most steps is few of all tokens.
  for (int i = 0; i < 100; ++i) pace.AddStep(i % 5 == 0 ? 12 : 1, 0, machine.Time(i % 5 == 0 ? 12 : 1));
  EXPECT_NEAR(static_cast<double>(pace.Tokens(12)), 32, 2);
}

TEST(PromptPace, HasBounds) {
  PromptPace slow(kOptions), fast(kOptions);
  Machine{.fixed = std::chrono::milliseconds(1), .each = std::chrono::milliseconds(2)}.Run(slow, 1);
  EXPECT_EQ(slow.Tokens(1), kOptions.least);
  Machine{.fixed = std::chrono::milliseconds(10), .each = std::chrono::microseconds(1)}.Run(fast, 1);
  EXPECT_EQ(fast.Tokens(1), kOptions.most);
  PromptPace free(kOptions);
  Machine{.fixed = std::chrono::milliseconds(10), .each = Duration(0)}.Run(free, 1);
  EXPECT_EQ(free.Tokens(1), kOptions.most);
}

TEST(PromptPace, MayTakeWhatNobodyNotices) {
  PromptPace::Options options = kOptions;
  options.unnoticed = std::chrono::milliseconds(10);
  PromptPace pace(options);
  Machine{.fixed = std::chrono::microseconds(900), .each = std::chrono::microseconds(100)}.Run(pace, 1);
  EXPECT_NEAR(static_cast<double>(pace.Tokens(1)), 90, 1);
}

TEST(PromptPace, DelayedStepsDoNotCount) {
  const Machine machine{.fixed = std::chrono::milliseconds(20), .each = std::chrono::milliseconds(1)};
  PromptPace pace(kOptions);
  std::mt19937 random(1);
  for (int i = 0; i < 1000; ++i) {
    const std::size_t prompt = i % 2 == 0 ? 0 : pace.Tokens(4);
    const Duration delay = random() % 5 == 0 ? std::chrono::milliseconds(300) : Duration(0);
    pace.AddStep(4, prompt, machine.Time(4 + prompt) + delay);
  }
  EXPECT_NEAR(static_cast<double>(pace.Tokens(4)), 24, 1);
}

TEST(PromptPace, AFixedPaceStays) {
  PromptPace::Options options = kOptions;
  options.slowdown = 0;
  PromptPace pace(options);
  Machine{.fixed = std::chrono::milliseconds(20), .each = std::chrono::milliseconds(1)}.Run(pace, 4);
  EXPECT_EQ(pace.Tokens(4), options.first);
}

}  // namespace
}  // namespace millrace::serve
