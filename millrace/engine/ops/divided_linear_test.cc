#include "millrace/engine/ops/divided_linear.h"

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "millrace/collectives/testing/forwarding.h"
#include "millrace/collectives/testing/run_ranks.h"
#include "millrace/engine/ops/common/deferred_work.h"
#include "millrace/engine/ops/exchange.h"

namespace millrace::engine::ops {
namespace {

constexpr int kRanks = 2;
constexpr std::int64_t kTokens = 12, kIn = 16, kOut = 8;  // of the whole layer

/// Writes when operations start and when they are waited for, and calls `look` before each line.
class RecordingCollective final : public collectives::ForwardingCollective {
 public:
  using collectives::ForwardingCollective::ForwardingCollective;
  Operation StartAllReduce(Elements elements, Reduction reduction) override {
    return Record("all-reduce", [&] { return inner_->StartAllReduce(std::move(elements), reduction); });
  }
  Operation StartAllGather(Elements all, Elements mine) override {
    return Record("all-gather", [&] { return inner_->StartAllGather(std::move(all), std::move(mine)); });
  }
  Operation StartReduceScatter(Elements mine, Elements all, Reduction reduction) override {
    return Record("reduce-scatter",
                  [&] { return inner_->StartReduceScatter(std::move(mine), std::move(all), reduction); });
  }

  /// Adds a line with what `look` sees.
  void Log(const std::string& event) { events.push_back(event + look()); }
  std::vector<std::string> events;
  std::function<std::string()> look = [] { return ""; };

 private:
  class Waited final : public Pending {
   public:
    Waited(RecordingCollective& owner, std::string name, Operation inner)
        : owner_(owner), name_(std::move(name)), inner_(std::move(inner)) {}
    Status Wait() override {
      owner_.Log("wait for " + name_);
      return inner_->Wait();
    }

   private:
    RecordingCollective& owner_;
    const std::string name_;
    const Operation inner_;
  };
  template <class Start>
  Operation Record(std::string name, Start start) {
    Log("start " + name);
    return std::make_unique<Waited>(*this, std::move(name), start());
  }
};

at::Tensor RandomOf(at::IntArrayRef shape, std::uint64_t seed) {
  return at::randn(shape, at::detail::createCPUGenerator(seed));
}
Weight TrainedWeight(const at::Tensor& value) {
  return {.value = value.clone().set_requires_grad(true), .gradient = at::zeros(value.sizes())};
}

/// A column-parallel layer of one rank with its input.
struct ColumnCase {
  Weight weight, bias;
  at::Tensor x, dout;
  LayerInput Again() const {
    return {x, [x = x.detach()] { return x; }};
  }
};
ColumnCase MakeColumnCase(int rank, bool sequence) {
  at::Tensor x = RandomOf({kTokens, kIn}, 1);
  if (sequence) x = x.chunk(kRanks)[rank].contiguous();
  return {TrainedWeight(RandomOf({kOut, kIn}, 2).chunk(kRanks)[rank].contiguous()),
          TrainedWeight(RandomOf({kOut}, 3).chunk(kRanks)[rank].contiguous()), x.set_requires_grad(true),
          RandomOf({kTokens, kOut}, 4).chunk(kRanks, 1)[rank].contiguous()};
}

/// What the backward pass of a column-parallel layer does in which order, as rank 0 sees it.
std::vector<std::string> BackwardEvents(bool sequence, bool again, bool defers) {
  std::vector<std::string> events;
  collectives::RunRanks(collectives::GroupKind::kThreads, kRanks, [&](std::unique_ptr<Collective> group) {
    RecordingCollective recorded(std::move(group));
    const ColumnCase layer = MakeColumnCase(recorded.rank(), sequence);
    const TensorRanks ranks{&recorded, sequence};
    const at::Tensor out = ColumnLinear(again ? layer.Again() : LayerInput(layer.x), {layer.weight, layer.bias}, ranks);
    recorded.events.clear();
    recorded.look = [&] { return layer.weight.gradient.any().item<bool>() ? ", weight done" : ""; };
    DeferredWork later;
    {
      std::optional<DeferScope> scope;
      if (defers) scope.emplace(later);
      out.backward(layer.dout);
    }
    recorded.Log("end");
    later.RunAll();
    recorded.Log("later");
    if (recorded.rank() == 0) events = recorded.events;
  });
  return events;
}

using Events = std::vector<std::string>;

TEST(ColumnLinear, ComputesTheWeightsGradientBeforeItWaitsForTheSum) {
  EXPECT_EQ(BackwardEvents(false, false, false),
            (Events{"start all-reduce", "wait for all-reduce, weight done", "end, weight done", "later, weight done"}));
  EXPECT_EQ(BackwardEvents(true, false, false), (Events{"start reduce-scatter", "wait for reduce-scatter, weight done",
                                                        "end, weight done", "later, weight done"}));
}

TEST(ColumnLinear, GathersTheInputWhileItComputesTheInputsGradient) {
  // The sum starts when its operand, the gradient of the input, is there.
  EXPECT_EQ(BackwardEvents(true, true, false),
            (Events{"start all-gather", "start reduce-scatter", "wait for all-gather",
                    "wait for reduce-scatter, weight done", "end, weight done", "later, weight done"}));
}

TEST(ColumnLinear, DefersTheWeightsGradientWithItsGather) {
  EXPECT_EQ(BackwardEvents(true, true, true),
            (Events{"start reduce-scatter", "wait for reduce-scatter", "end", "start all-gather", "wait for all-gather",
                    "later, weight done"}));
  EXPECT_EQ(BackwardEvents(false, true, true),
            (Events{"start all-reduce", "wait for all-reduce", "end", "later, weight done"}));
}

/// What the backward pass of a row-parallel layer does in which order, as rank 0 sees it, if it makes its input again.
std::vector<std::string> RowBackwardEvents(bool defers) {
  std::vector<std::string> events;
  collectives::RunRanks(collectives::GroupKind::kThreads, kRanks, [&](std::unique_ptr<Collective> group) {
    RecordingCollective recorded(std::move(group));
    const int rank = recorded.rank();
    const Weight weight = TrainedWeight(RandomOf({kOut, kIn}, 5).chunk(kRanks, 1)[rank].contiguous());
    const at::Tensor x = RandomOf({kTokens, kIn}, 6).chunk(kRanks, 1)[rank].contiguous().set_requires_grad(true);
    const LayerInput input(x, [&recorded, x = x.detach()] {
      recorded.Log("make input");
      return x;
    });
    const at::Tensor out = RowLinear(input, {weight}, {&recorded, /*sequence_parallel=*/true});
    recorded.events.clear();
    DeferredWork later;
    {
      std::optional<DeferScope> scope;
      if (defers) scope.emplace(later);
      out.backward(RandomOf({kTokens, kOut}, 7).chunk(kRanks)[rank].contiguous());
    }
    recorded.Log("end");
    later.RunAll();
    EXPECT_TRUE(weight.gradient.any().item<bool>());
    if (rank == 0) events = recorded.events;
  });
  return events;
}

TEST(RowLinear, MakesItsInputAgainWhileItGathersTheGradient) {
  EXPECT_EQ(RowBackwardEvents(false), (Events{"start all-gather", "make input", "wait for all-gather", "end"}));
  EXPECT_EQ(RowBackwardEvents(true), (Events{"start all-gather", "wait for all-gather", "end", "make input"}));
}

/// The results of a layer of one rank.
struct LayerResults {
  at::Tensor out, dx, dweight, dbias;
};
void ExpectSameBits(const LayerResults& got, const LayerResults& want) {
  EXPECT_TRUE(got.out.equal(want.out));
  EXPECT_TRUE(got.dx.equal(want.dx));
  EXPECT_TRUE(got.dweight.equal(want.dweight));
  if (want.dbias.defined()) EXPECT_TRUE(got.dbias.equal(want.dbias));
}

class DividedLinear : public ::testing::TestWithParam<std::tuple<bool, bool>> {};

TEST_P(DividedLinear, HasTheBitsOfTheProductAfterTheExchange) {
  const auto [sequence, again] = GetParam();
  collectives::RunRanks(collectives::GroupKind::kDelayed, kRanks, [&](std::unique_ptr<Collective> group) {
    const TensorRanks ranks{group.get(), sequence};
    const auto column = [&](const auto& forward) {
      const ColumnCase layer = MakeColumnCase(group->rank(), sequence);
      const at::Tensor out = forward(layer);
      out.backward(layer.dout);
      return LayerResults{out.detach(), layer.x.grad(), layer.weight.gradient, layer.bias.gradient};
    };
    ExpectSameBits(column([&](const ColumnCase& layer) {
                     return ColumnLinear(again ? layer.Again() : LayerInput(layer.x), {layer.weight, layer.bias},
                                         ranks);
                   }),
                   column([&](const ColumnCase& layer) {
                     return Linear(EnterDividedLayer(layer.x, ranks), {layer.weight, layer.bias});
                   }));
    const auto row = [&](const auto& forward) {
      const Weight weight = TrainedWeight(RandomOf({kOut, kIn}, 5).chunk(kRanks, 1)[group->rank()].contiguous());
      const at::Tensor x = RandomOf({kTokens, kIn}, 6).chunk(kRanks, 1)[group->rank()].contiguous();
      x.set_requires_grad(true);
      const at::Tensor out = forward(x, weight), dout = RandomOf({kTokens, kOut}, 7);
      out.backward(sequence ? dout.chunk(kRanks)[group->rank()].contiguous() : dout);
      return LayerResults{out.detach(), x.grad(), weight.gradient, {}};
    };
    ExpectSameBits(
        row([&](const at::Tensor& x, const Weight& weight) {
          return RowLinear(again ? LayerInput{x, [x = x.detach()] { return x; }} : LayerInput(x), {weight}, ranks);
        }),
        row([&](const at::Tensor& x, const Weight& weight) { return LeaveDividedLayer(Linear(x, {weight}), ranks); }));
  });
}

INSTANTIATE_TEST_SUITE_P(Layouts, DividedLinear, ::testing::Combine(::testing::Bool(), ::testing::Bool()),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param) ? "sequence" : "whole") +
                                  (std::get<1>(info.param) ? "_again" : "_kept");
                         });

TEST(ColumnLinear, FailsIfARankIsLostInTheBackwardPass) {
  collectives::RunRanks(collectives::GroupKind::kThreads, kRanks, [&](std::unique_ptr<Collective> group) {
    const int rank = group->rank();
    collectives::FaultPlan plan;
    if (rank == 1) plan.lost_at = 0;
    const std::unique_ptr<Collective> faulty = collectives::MakeFaulty(std::move(group), plan);
    const ColumnCase layer = MakeColumnCase(rank, false);
    const at::Tensor out = ColumnLinear(layer.x, {layer.weight, layer.bias}, {faulty.get(), false});
    EXPECT_ANY_THROW(out.backward(layer.dout));
    EXPECT_TRUE(layer.weight.gradient.any().item<bool>());
  });
}

}  // namespace
}  // namespace millrace::engine::ops
