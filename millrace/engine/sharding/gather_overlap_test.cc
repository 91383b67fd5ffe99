// New values of parameters travel beside the next forward pass, and no pass reads a value before it has arrived.
#include <gtest/gtest.h>

#include <chrono>
#include <limits>
#include <semaphore>

#include "millrace/collectives/testing/forwarding.h"
#include "millrace/engine/testing/train_ranks.h"

namespace millrace::engine {
namespace {

constexpr int kSteps = 3;
constexpr std::chrono::seconds kPatience(10);  // far more than a step takes; it passes only where the test fails

/// Which gathers of a rank are late.
struct GatherHold {
  std::size_t first = 0;              ///< of those that follow an update: this one and all behind it
  bool is_on = false;                 ///< gathers are held now
  std::size_t seen = 0;               ///< gathers since is_on
  std::binary_semaphore released{0};  ///< the held ones may begin
};

/// A rank whose held gathers begin when they are waited for, and not before their release. Meanwhile the other ranks'
/// parts of the values are NaN, so a pass that reads them early has no finite loss.
class HeldGathers final : public collectives::ForwardingCollective {
 public:
  HeldGathers(std::unique_ptr<Collective> inner, GatherHold& hold)
      : collectives::ForwardingCollective(std::move(inner)), hold_(hold) {}

  Operation StartAllGather(Elements all, Elements mine) override {
    if (!hold_.is_on || hold_.seen++ < hold_.first) {
      return collectives::ForwardingCollective::StartAllGather(std::move(all), std::move(mine));
    }
    const at::Tensor part = TensorOf(mine), own = part.clone();
    TensorOf(all).fill_(std::numeric_limits<double>::quiet_NaN());
    part.copy_(own);
    return std::make_unique<HeldGather>(*inner_, hold_, std::move(all), std::move(mine));
  }

 private:
  class HeldGather final : public Pending {
   public:
    HeldGather(Collective& group, GatherHold& hold, Elements all, Elements mine)
        : group_(group), hold_(hold), all_(std::move(all)), mine_(std::move(mine)) {}
    ~HeldGather() override { EXPECT_TRUE(is_done_) << "nobody waited for a gather"; }
    Status Wait() override {
      is_done_ = true;
      EXPECT_TRUE(hold_.released.try_acquire_for(kPatience))
          << "the other rank waits for gathers that it does not need";
      hold_.released.release();  // for the gathers behind this one
      return group_.AllGather(all_, mine_);
    }

   private:
    Collective& group_;
    GatherHold& hold_;
    const Elements all_, mine_;
    bool is_done_ = false;
  };

  GatherHold& hold_;
};

/// Releases the held gathers when the forward pass through the group before them has ended.
class ReleasingHooks final : public GroupHooks {
 public:
  ReleasingHooks(ParameterBuffer& buffer, GroupHooks& inner, GatherHold& hold)
      : buffer_(buffer), inner_(inner), hold_(hold) {
    buffer.hooks = this;
  }
  ~ReleasingHooks() override { buffer_.hooks = nullptr; }
  void BeforeForward(std::size_t group) override { inner_.BeforeForward(group); }
  void AfterForward(std::size_t group) override {
    inner_.AfterForward(group);
    if (is_on && group + 1 == hold_.first) {
      is_on = false;
      hold_.released.release();
    }
  }
  void BeforeBackward(std::size_t group) override { inner_.BeforeBackward(group); }
  void AfterBackward(std::size_t group) override { inner_.AfterBackward(group); }

  bool is_on = false;  ///< the next forward pass releases

 private:
  ParameterBuffer& buffer_;
  GroupHooks& inner_;
  GatherHold& hold_;
};

/// Trains two ranks. The gathers behind the first update are held on rank 1, from group `held` on, until rank 0 has
/// passed forward through the group before. Returns the losses and the gradients' norms.
std::vector<double> TrainWithHeldGathers(int zero, std::size_t held) {
  std::vector<double> seen;
  GatherHold hold{.first = held};
  OnThreads(2, [&](Collective& world) {
    const bool is_late = world.rank() == 1;
    const auto wrap = [&](RankTrainer::Group group) -> RankTrainer::Group {
      if (!is_late || group->size() == 1) return group;
      return std::make_unique<HeldGathers>(std::move(group), hold);
    };
    const TrainingLayout layout{.zero = zero, .mesh = {.shard = 2}, .micro_batches = 2};
    RankTrainer trainer(world, {.optimizer = {AdamwOptions{.eps = 1e-4}, {}}}, layout, wrap);
    ReleasingHooks hooks(trainer.model->buffer(), *trainer.hooks, hold);
    for (int step = 0; step < kSteps; ++step) {
      if (is_late) hold.is_on = step == 0;  // the gathers begin at the end of a step
      if (!is_late) hooks.is_on = step == 1;
      const double loss = trainer.Step(step);
      if (is_late) continue;
      seen.push_back(loss);
      seen.push_back(trainer.norm);
    }
  });
  return seen;
}

TEST(GatherOverlap, AForwardPassNeedsOnlyTheGathersOfItsOwnGroups) {
  for (const int zero : {1, 2}) {
    constexpr std::size_t kGroups = 4;  // embedding, two blocks, head
    const std::vector<double> undisturbed = TrainWithHeldGathers(zero, kGroups);
    ASSERT_EQ(undisturbed.size(), 2 * kSteps);
    for (std::size_t held = 1; held < kGroups; ++held) {
      EXPECT_EQ(TrainWithHeldGathers(zero, held), undisturbed) << "zero " << zero << " held from group " << held;
    }
  }
}

}  // namespace
}  // namespace millrace::engine
