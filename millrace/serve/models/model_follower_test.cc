#include "millrace/serve/models/model_follower.h"

#include <gtest/gtest.h>

#include <latch>
#include <map>

#include "millrace/serve/testing.h"

namespace millrace::serve {
namespace {

GenerationRequest Ask() {
  return {.prompt = Bytes(">"), .max_tokens = 50, .ends = {ByteTokenizer::kEos}, .sampling = {.temperature = 0}};
}

std::string TextOf(Generation& generation) {
  std::string text;
  while (auto token = generation.Next({})) text.push_back(static_cast<char>(token->token));
  EXPECT_TRUE(generation.result());
  return text;
}

/// Lets a thread that sleeps go on when the test says so.
class StepClock final : public Clock {
 public:
  TimePoint Now() const override { return {}; }
  WallTime Wall() const override { return {}; }
  bool SleepUntil(TimePoint, std::stop_token stop) override {
    MutexLock lock(mutex_);
    ++sleeps_;
    changed_.NotifyAll();
    changed_.Wait(mutex_, stop, [this] { return wakes_ > 0; });
    if (wakes_ > 0) --wakes_;
    return !stop.stop_requested();
  }
  /// Wakes the thread, and blocks until it sleeps again.
  void Step() {
    MutexLock lock(mutex_);
    while (sleeps_ == 0) changed_.Wait(mutex_);
    const int before = sleeps_;
    ++wakes_;
    changed_.NotifyAll();
    while (sleeps_ == before) changed_.Wait(mutex_);
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  int sleeps_ = 0, wakes_ = 0;
};

/// A run whose checkpoint of step N says "step N".
class ModelFollowerTest : public testing::Test {
 protected:
  struct Served {
    explicit Served(std::uint64_t step) : model(ScriptedModel::Says(fmt::format("step {}", step))) {}
    ScriptedModel model;
    Scheduler scheduler{model, {}};
  };
  std::shared_ptr<Scheduler> Make(std::uint64_t step) {
    auto made = std::make_shared<Served>(step);
    alive_[step] = made;
    return {made, &made->scheduler};
  }
  std::unique_ptr<ModelFollower> Follow() {
    return std::make_unique<ModelFollower>(
        served_, 1, clock_,
        ModelFollower::Options{
            .every = std::chrono::seconds(30),
            .find_newest = [this](std::stop_token) { return newest_; },
            .load = [this](std::uint64_t step, std::stop_token) -> Result<std::shared_ptr<Scheduler>> {
              ++loads_;
              if (failure_) return Fail(*failure_);
              return Make(step);
            }});
  }
  /// Lets the follower look once.
  void Look() { clock_.Step(); }
  std::string Say() {
    const auto scheduler = served_.Get();
    return TextOf(scheduler->Submit({Ask()})->at(0));
  }

  StepClock clock_;
  std::map<std::uint64_t, std::weak_ptr<Served>> alive_;
  Result<std::optional<std::uint64_t>> newest_ = std::optional<std::uint64_t>(1);
  std::optional<Error> failure_;
  int loads_ = 0;
  ServedScheduler served_{Make(1)};
};

TEST_F(ModelFollowerTest, NewRequestsGetTheNewestCheckpoint) {
  auto follower = Follow();
  Look();
  EXPECT_EQ(loads_, 0) << "there is nothing newer";
  newest_ = 5;
  Look();
  EXPECT_EQ(Say(), "step 5");
  EXPECT_EQ(follower->counters().step, 5U);
  EXPECT_EQ(follower->counters().reloads, 1U);
  newest_ = 3;
  Look();
  EXPECT_EQ(Say(), "step 5") << "an older one is not taken";
}

TEST_F(ModelFollowerTest, ARequestUnderWayEndsWithItsWeights) {
  std::latch entered(1), go(1);
  alive_[1].lock()->model.on_append = [&, first = true](std::span<const TokenId>) mutable {
    if (!std::exchange(first, false)) return;
    entered.count_down();
    go.wait();
  };
  auto follower = Follow();
  auto scheduler = served_.Get();
  auto under_way = scheduler->Submit({Ask()});
  entered.wait();
  newest_ = 2;
  Look();
  EXPECT_EQ(Say(), "step 2");
  newest_ = 3;
  Look();
  EXPECT_EQ(loads_, 1) << "a third model would need memory, too";
  go.count_down();
  EXPECT_EQ(TextOf(under_way->at(0)), "step 1");
  EXPECT_FALSE(alive_[1].expired());
  scheduler.reset();
  Look();
  EXPECT_TRUE(alive_[1].expired());
  EXPECT_EQ(Say(), "step 3");
  EXPECT_EQ(served_.counters().tokens, 3 * (1U + 6)) << "those of the schedulers that have ended count";
}

TEST_F(ModelFollowerTest, KeepsTheOldOneIfTheNewerFails) {
  auto follower = Follow();
  newest_ = 2;
  failure_ = Error(Code::kCorrupt, "cut short");
  Look();
  Look();
  EXPECT_EQ(loads_, 1) << "it will not mend itself";
  EXPECT_EQ(Say(), "step 1");
  EXPECT_EQ(follower->counters().failed_reloads, 1U);
  newest_ = 3;
  failure_ = Error(Code::kUnavailable, "no route");
  Look();
  Look();
  EXPECT_EQ(loads_, 3) << "this may pass";
  newest_ = Fail(Code::kUnavailable, "no route");
  Look();
  newest_ = 3;
  failure_.reset();
  Look();
  EXPECT_EQ(Say(), "step 3");
  EXPECT_EQ(follower->counters().failed_reloads, 3U);
}

}  // namespace
}  // namespace millrace::serve
