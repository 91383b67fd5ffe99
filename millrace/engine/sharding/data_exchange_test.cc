// Models whose ranks divide state, gradients or parameters, against the same model on one rank.
#include "millrace/engine/sharding/data_exchange.h"

#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>

#include "millrace/base/glob.h"
#include "millrace/collectives/testing/counting.h"
#include "millrace/collectives/testing/faulty.h"
#include "millrace/collectives/testing/forwarding.h"
#include "millrace/collectives/testing/run_ranks.h"
#include "millrace/engine/testing/train_ranks.h"

namespace millrace::engine {
namespace {

/// Optimizers for which a gradient's rounding error stays small: eps is far above it.
const OptimizerOptions kAdamw = {AdamwOptions{.eps = 1e-4}, {}};
const OptimizerOptions kLamb = {LambOptions{.eps = 1e-4}, {.no_decay = {"*.1.*.weight"}}};
const OptimizerOptions kSgd = {SgdOptions{}, {}};

void ExpectSame(const Trained& many, const Trained& one, at::ScalarType dtype, const std::string& what) {
  const bool exact = dtype == at::kFloat;
  ASSERT_EQ(many.losses.size(), one.losses.size()) << what;
  for (std::size_t i = 0; i < one.losses.size(); ++i) {
    EXPECT_NEAR(many.losses[i], one.losses[i], (exact ? 2e-6 : 1e-2) * one.losses[i]) << what;
    EXPECT_NEAR(many.norms[i], one.norms[i], (exact ? 1e-5 : 5e-2) * one.norms[i]) << what;
  }
  ASSERT_EQ(many.weights.size(), one.weights.size()) << what;
  for (const auto& [name, want] : one.weights) {
    const double norm = std::max(0.1, want.norm().item<double>());
    const double off = (many.weights.at(name) - want).norm().item<double>();
    EXPECT_LE(off, (exact ? 1e-5 : 2e-2) * norm) << what << " " << name;  // false for NaN: an element nobody owns
  }
}

std::vector<TrainingLayout> DataLayouts() {
  std::vector<TrainingLayout> layouts;
  for (const int replica : {1, 2}) {
    layouts.push_back({.zero = 0, .mesh = {.replica = replica}});
    layouts.push_back({.zero = 3, .mesh = {.replica = replica}});
    for (const int zero : {1, 2, 3}) {
      for (const int shard : {2, 4}) layouts.push_back({.zero = zero, .mesh = {.replica = replica, .shard = shard}});
    }
  }
  return layouts;
}

class DataExchangeTest : public ::testing::TestWithParam<const char*> {};

TEST_P(DataExchangeTest, EveryStageLearnsWhatOneRankLearns) {
  int round = 0;
  for (const OptimizerOptions& optimizer : {kAdamw, kLamb, kSgd}) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      const TrainingTask task{.model = GetParam(), .dtype = dtype, .optimizer = optimizer};
      const Trained one = Train(task, {});
      for (TrainingLayout layout : DataLayouts()) {
        layout.exchange.reshard = layout.mesh.shard != 2;
        layout.micro_batches = round++ % 3 == 0 ? 3 : 1;
        ExpectSame(Train(task, layout), one, dtype, layout.ToText());
      }
    }
  }
}

TEST_P(DataExchangeTest, ShardsOfDividedLayersLearnTheSame) {
  for (const OptimizerOptions& optimizer : {kAdamw, kLamb}) {
    const TrainingTask task{.model = GetParam(), .optimizer = optimizer};
    const Trained one = Train(task, {});
    for (const int tensor : {2, 4}) {  // the Llamas have two key-value heads, so four ranks share them
      for (const int zero : {0, 1, 2, 3}) {
        for (const bool sequence : {false, true}) {
          TrainingLayout layout{.zero = zero, .mesh = {.tensor = tensor}, .micro_batches = 2, .sequence = sequence};
          (zero > 0 ? layout.mesh.shard : layout.mesh.replica) = 2;
          ExpectSame(Train(task, layout), one, at::kFloat, layout.ToText());
        }
      }
    }
  }
}

TEST_P(DataExchangeTest, ShardsOfStagesLearnTheSame) {
  for (const OptimizerOptions& optimizer : {kAdamw, kLamb}) {
    const TrainingTask task{.model = GetParam(), .optimizer = optimizer};
    const Trained one = Train(task, {});
    for (const int zero : {0, 1, 2, 3}) {
      for (const int tensor : {1, 2}) {
        TrainingLayout layout{.zero = zero, .mesh = {.pipeline = 2, .tensor = tensor}};
        (zero > 0 ? layout.mesh.shard : layout.mesh.replica) = 2;
        for (const PipelineSchedule schedule :
             {PipelineSchedule::k1F1B, PipelineSchedule::kInterleaved, PipelineSchedule::kZeroBubble}) {
          layout.schedule = schedule;
          layout.virtual_stages = schedule == PipelineSchedule::kInterleaved ? 2 : 1;
          layout.micro_batches = schedule == PipelineSchedule::kInterleaved ? 4 : 3;
          ExpectSame(Train(task, layout), one, at::kFloat, layout.ToText());
        }
      }
    }
  }
}

/// Replicas of shards (hybrid sharding) of stages, and of divided layers.
TEST_P(DataExchangeTest, ReplicasOfShardsLearnTheSameAlongAllAxes) {
  const TrainingTask task{.model = GetParam(), .optimizer = kLamb};
  const Trained one = Train(task, {});
  const auto expect_same = [&](TrainingLayout layout) {
    layout.exchange.reshard = layout.zero == 3 && layout.micro_batches % 2 == 1;
    ExpectSame(Train(task, layout), one, at::kFloat, layout.ToText());
  };
  for (const int zero : {1, 2, 3}) {
    TrainingLayout stages{.zero = zero, .mesh = {.pipeline = 2, .replica = 2, .shard = 2}, .micro_batches = 3};
    for (const PipelineSchedule schedule : {PipelineSchedule::kSimple, PipelineSchedule::k1F1B,
                                            PipelineSchedule::kInterleaved, PipelineSchedule::kZeroBubble}) {
      stages.schedule = schedule;
      stages.virtual_stages = schedule == PipelineSchedule::kInterleaved ? 2 : 1;
      stages.micro_batches = schedule == PipelineSchedule::kInterleaved ? 2 : 3;
      expect_same(stages);
    }
    for (const bool sequence : {false, true}) {
      expect_same({.zero = zero,
                   .mesh = {.replica = 2, .shard = 2, .tensor = 2},
                   .micro_batches = 2 + zero % 2,
                   .sequence = sequence});
    }
    expect_same({.zero = zero,
                 .mesh = {.pipeline = 2, .replica = 2, .shard = 2, .tensor = 2},
                 .micro_batches = 3,
                 .sequence = true,
                 .schedule = PipelineSchedule::kZeroBubble});
  }
}

/// Globs that freeze whole blocks, parts of blocks and the embedding. A tied head is frozen with its embedding.
std::vector<std::string> FrozenNames(std::string_view model) {
  if (model == "gpt2") return {"*wte.weight", "*.h.0.*", "*.h.1.attn.*"};
  return {"model.embed_tokens.weight", "*.layers.0.*", "*.layers.1.self_attn.*"};
}
bool IsFrozen(const std::vector<std::string>& globs, const std::string& name) {
  return std::ranges::any_of(globs, [&](const std::string& glob) { return GlobMatches(glob, name); });
}

TEST_P(DataExchangeTest, FrozenParametersStayAndOthersLearn) {
  for (const OptimizerOptions& optimizer : {kAdamw, kLamb}) {
    const TrainingTask task{.model = GetParam(), .optimizer = optimizer, .freeze = FrozenNames(GetParam())};
    TrainingTask untrained = task;
    untrained.steps = 0;
    const Trained one = Train(task, {}), initial = Train(untrained, {});
    for (const auto& [name, weight] : one.weights) {
      EXPECT_EQ(weight.equal(initial.weights.at(name)), IsFrozen(task.freeze, name)) << name;
    }
    std::vector<TrainingLayout> layouts = DataLayouts();
    for (const int zero : {0, 3}) {
      TrainingLayout layout{.zero = zero, .micro_batches = 2};
      (zero > 0 ? layout.mesh.shard : layout.mesh.replica) = 2;
      layout.mesh.tensor = 2;
      layouts.push_back(layout);
      layout.sequence = true;
      layouts.push_back(layout);
      layout.mesh.pipeline = 2;
      layout.micro_batches = 3;
      layouts.push_back(layout);
      layout.schedule = PipelineSchedule::kZeroBubble;
      layouts.push_back(layout);
    }
    for (const TrainingLayout& layout : layouts) ExpectSame(Train(task, layout), one, at::kFloat, layout.ToText());
  }
}

TEST_P(DataExchangeTest, FrozenParametersCostNeitherGradientsNorMoments) {
  const TrainingTask all{.model = GetParam()};
  TrainingTask some = all;
  some.freeze = FrozenNames(GetParam());
  OnThreads(1, [&](Collective& world) {
    const RankTrainer whole(world, all, {}), frozen(world, some, {});
    std::int64_t trained = 0;
    for (const NamedParameter& parameter : frozen.model->Parameters()) {
      EXPECT_EQ(parameter.gradient.defined(), !IsFrozen(some.freeze, parameter.name)) << parameter.name;
      if (parameter.trainable) trained += parameter.elements();
    }
    std::int64_t moments = 0;
    for (const NamedState& state : frozen.optimizer->State()) {
      EXPECT_FALSE(IsFrozen(some.freeze, state.name.substr(state.name.find('/') + 1))) << state.name;
      moments += state.tensor.numel();
    }
    EXPECT_EQ(moments, 2 * trained);
    EXPECT_LT(frozen.model->buffer().GradientBytes(), whole.model->buffer().GradientBytes());
    // The gradients that are left have the same bits as without frozen parameters.
    const at::Tensor ids = at::arange(24, at::kLong).remainder(67).view({3, 8});
    const ModelBatch batch{.inputs = ids, .labels = ids.flip({1})};
    whole.model->LossSum(batch).backward();
    frozen.model->LossSum(batch).backward();
    for (const NamedParameter& parameter : frozen.model->Parameters()) {
      const NamedParameter& same =
          whole.model->Parameters()[static_cast<std::size_t>(&parameter - frozen.model->Parameters().data())];
      if (parameter.trainable) EXPECT_TRUE(parameter.gradient.equal(same.gradient)) << parameter.name;
    }
  });
}

TEST(FrozenParameters, RefuseHalfAMatrixAndGlobsWithoutEffect) {
  const auto half = MakeModel(TinyConfig("llama"), at::kFloat, at::kCPU, 1, {.freeze = {"*.q_proj.weight"}});
  ASSERT_FALSE(half);
  EXPECT_THAT(half.error().ToString(), testing::HasSubstr("self_attn.k_proj.weight are one matrix in memory"));
  EXPECT_EQ(half.error().code(), Code::kInvalidArgument);

  const auto model = MakeModel(TinyConfig("llama"), at::kFloat, at::kCPU, 1, {.freeze = {"*"}}).value();
  model->buffer().EnableGradients();
  const auto optimizer = MakeOptimizer(model->buffer(), kAdamw);
  ASSERT_FALSE(optimizer);
  EXPECT_THAT(optimizer.error().ToString(), testing::HasSubstr("nothing is left to train"));
  EXPECT_TRUE(CheckGlobs("freeze", model->buffer(), {"*.mlp.*"}, {}));
  const Status none = CheckGlobs("freeze", model->buffer(), {"*.mlp.*", "*.mpl.*"}, {});
  ASSERT_FALSE(none);
  EXPECT_THAT(none.error().ToString(), testing::HasSubstr("freeze: no parameter of the model matches \"*.mpl.*\""));
}

INSTANTIATE_TEST_SUITE_P(Models, DataExchangeTest, ::testing::Values("llama", "tied", "gpt2"),
                         [](const auto& info) { return std::string(info.param); });

TEST(DataExchange, Bf16GradientsAreClose) {
  const TrainingTask task{.optimizer = kSgd};
  for (TrainingLayout layout : DataLayouts()) {
    layout.micro_batches = 2;
    const Trained exact = Train(task, layout);
    layout.exchange.reduce_in_bf16 = true;
    const Trained close = Train(task, layout);
    for (std::size_t i = 0; i < exact.losses.size(); ++i) {
      EXPECT_NEAR(close.losses[i], exact.losses[i], 1e-3 * exact.losses[i]) << layout.ToText();
      EXPECT_NEAR(close.norms[i], exact.norms[i], 1e-2 * exact.norms[i]) << layout.ToText();
    }
    const bool travels = layout.mesh.replica * layout.mesh.shard > 1;
    EXPECT_EQ(close.norms != exact.norms, travels) << layout.ToText();
  }
}

/// Counts the reductions that ranks start, and looks at the counts between passes and Finish().
TEST(DataExchange, WithoutOverlapSumsBeginBehindThePasses) {
  for (const bool bf16 : {false, true}) {
    for (const MeshShape mesh : {MeshShape{.replica = 2}, {.shard = 2}, {.replica = 2, .shard = 2}}) {
      for (const bool overlap : {true, false}) {
        OnThreads(static_cast<int>(mesh.ranks()), [&](Collective& world) {
          TrainingLayout layout{.zero = mesh.shard > 1 ? 1 : 0, .mesh = mesh, .micro_batches = 2};
          layout.exchange.reduce_in_bf16 = bf16;
          layout.exchange.overlap = overlap;
          const auto traffic = std::make_shared<collectives::Traffic>();
          RankTrainer trainer(world, {.optimizer = kSgd}, layout, [&](RankTrainer::Group group) {
            return collectives::MakeCounting(std::move(group), traffic);
          });
          const auto sums = [&] {
            return traffic->operations(collectives::Traffic::kAllReduce) +
                   traffic->operations(collectives::Traffic::kReduceScatter);
          };
          std::uint64_t before_finish = 0;
          trainer.before_finish = [&] { before_finish = sums(); };
          trainer.Step(0);
          EXPECT_EQ(before_finish > 0, overlap) << layout.ToText();
          if (!overlap) EXPECT_GT(sums(), 0u) << layout.ToText();
        });
      }
    }
  }
}

TEST(DataExchange, OverlapChangesNoBits) {
  for (const bool bf16 : {false, true}) {
    const TrainingTask task{.model = "tied", .optimizer = kAdamw};
    for (TrainingLayout layout : DataLayouts()) {
      if (layout.zero > 1) continue;
      layout.micro_batches = 2;
      layout.exchange.reduce_in_bf16 = bf16;
      const Trained beside = Train(task, layout);
      layout.exchange.overlap = false;
      const Trained behind = Train(task, layout);
      EXPECT_EQ(behind.losses, beside.losses) << layout.ToText();
      EXPECT_EQ(behind.norms, beside.norms) << layout.ToText();
      for (const auto& [name, weight] : beside.weights) EXPECT_TRUE(behind.weights.at(name).equal(weight)) << name;
    }
  }
}

class DataExchangeOver : public ::testing::TestWithParam<collectives::GroupKind> {};

TEST_P(DataExchangeOver, TwoRanksTrainAsOne) {
  for (const std::string model : {"llama", "tied"}) {
    const TrainingTask task{.model = model, .optimizer = kAdamw};
    const Trained one = Train(task, {});
    for (const int zero : {0, 1, 2, 3}) {
      TrainingLayout layout{.zero = zero, .micro_batches = 2};
      (zero > 0 ? layout.mesh.shard : layout.mesh.replica) = 2;
      Trained two;
      std::mutex mutex;
      collectives::RunRanks(GetParam(), 2,
                            [&](std::unique_ptr<Collective> world) { TrainRank(*world, task, layout, mutex, two); });
      ExpectSame(two, one, at::kFloat, layout.ToText());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Over, DataExchangeOver, ::testing::ValuesIn(collectives::kEveryGroupKind),
                         collectives::GroupKindName);

/// Bytes that a rank's parameters and gradients have, at most, at any hook.
class PeakHooks final : public GroupHooks {
 public:
  PeakHooks(ParameterBuffer& buffer, GroupHooks& inner) : buffer_(buffer), inner_(inner) { buffer.hooks = this; }
  ~PeakHooks() override { buffer_.hooks = nullptr; }
  void BeforeForward(std::size_t group) override {
    Measure([&] { inner_.BeforeForward(group); });
  }
  void AfterForward(std::size_t group) override {
    Measure([&] { inner_.AfterForward(group); });
  }
  void BeforeBackward(std::size_t group) override {
    Measure([&] { inner_.BeforeBackward(group); });
  }
  void AfterBackward(std::size_t group) override {
    Measure([&] { inner_.AfterBackward(group); });
  }

  std::int64_t values = 0, gradients = 0;

 private:
  template <class Call>
  void Measure(const Call& call) {
    call();
    values = std::max(values, buffer_.ValueBytes());
    gradients = std::max(gradients, buffer_.GradientBytes());
  }
  ParameterBuffer& buffer_;
  GroupHooks& inner_;
};

std::int64_t LargestGroup(const ParameterBuffer& buffer) {
  std::int64_t most = 0;
  for (const ParameterGroup& group : buffer.groups()) most = std::max(most, group.size());
  return most;
}

TEST(DataExchange, KeepsWhatTheStagePromises) {
  for (const bool reshard : {true, false}) {
    for (const int zero : {1, 2, 3}) {
      OnThreads(4, [&](Collective& world) {
        TrainingLayout layout{.zero = zero, .mesh = {.shard = 4}, .micro_batches = 2};
        layout.exchange.reshard = reshard;
        RankTrainer trainer(world, {.dtype = at::kBFloat16, .optimizer = kAdamw}, layout);
        const ParameterBuffer& buffer = trainer.model->buffer();
        const std::int64_t all = buffer.size(), owned = all / 4, group = LargestGroup(buffer);
        EXPECT_EQ(buffer.owned_size(), owned);
        std::int64_t state = 0;
        for (const NamedState& each : trainer.optimizer->State()) state += each.tensor.numel();
        EXPECT_LE(state, 3 * owned) << "two moments and the master copy";
        EXPECT_EQ(buffer.ValueBytes(), 2 * (zero == 3 ? owned : all));
        EXPECT_EQ(buffer.GradientBytes(), 4 * (zero == 1 ? all : owned));
        PeakHooks peak(trainer.model->buffer(), *trainer.hooks);
        for (int step = 0; step < 3; ++step) {
          trainer.Step(step);
          EXPECT_EQ(buffer.ValueBytes(), 2 * (zero == 3 ? owned : all));
          EXPECT_EQ(buffer.GradientBytes(), 4 * (zero == 1 ? all : owned));
        }
        if (zero == 3) EXPECT_LE(peak.values, 2 * (owned + (reshard ? 2 * group : all)));
        if (zero == 3) EXPECT_GT(peak.values, 2 * (owned + group)) << "the next group is gathered in advance";
        if (zero >= 2) EXPECT_LE(peak.gradients, 4 * (owned + 2 * group));
        if (zero >= 2) EXPECT_GT(peak.gradients, 4 * owned);
      });
    }
  }
}

class SendsWhatTheStageNeeds : public ::testing::TestWithParam<bool> {};

TEST_P(SendsWhatTheStageNeeds, ByBytes) {
  const bool bf16 = GetParam();
  for (const int micro_batches : {1, 3}) {
    for (const int zero : {0, 1, 2, 3}) {
      OnThreads(2, [&](Collective& world) {
        TrainingLayout layout{.zero = zero, .micro_batches = micro_batches};
        layout.exchange.reduce_in_bf16 = bf16;
        (zero > 0 ? layout.mesh.shard : layout.mesh.replica) = 2;
        const auto traffic = std::make_shared<collectives::Traffic>();
        RankTrainer trainer(world, {.optimizer = kAdamw}, layout, [&](RankTrainer::Group group) {
          return collectives::MakeCounting(std::move(group), traffic);
        });
        trainer.Step(0);
        trainer.Step(1);
        const auto bytes = [&](collectives::Traffic::Kind kind) {
          return static_cast<std::int64_t>(traffic->bytes(kind));
        };
        const std::int64_t reduced = bytes(collectives::Traffic::kAllReduce),
                           scattered = bytes(collectives::Traffic::kReduceScatter);
        const std::int64_t gathered = bytes(collectives::Traffic::kAllGather);
        trainer.Step(2);
        const ParameterBuffer& buffer = trainer.model->buffer();
        const std::int64_t all = 4 * buffer.size(), gradients = bf16 ? all / 2 : all;
        EXPECT_EQ(bytes(collectives::Traffic::kAllReduce) - reduced, zero == 0 ? gradients : 0);
        EXPECT_EQ(bytes(collectives::Traffic::kReduceScatter) - scattered, zero == 0   ? 0
                                                                           : zero == 1 ? gradients
                                                                                       : micro_batches * gradients);
        // Values that one pass has used last and the next one uses first stay: of the head, and between micro-batches
        // of the embedding.
        const std::int64_t head = 4 * buffer.groups().back().size(), embedding = 4 * buffer.groups().front().size();
        const std::int64_t both_passes = micro_batches * (2 * all - head) - (micro_batches - 1) * embedding;
        EXPECT_EQ(bytes(collectives::Traffic::kAllGather) - gathered, zero == 0 ? 0 : zero == 3 ? both_passes : all);
      });
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Reduce, SendsWhatTheStageNeeds, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "bf16" : "f32"; });

/// Counts the sums in bfloat16 that have started and have not been waited for.
class InFlightCollective final : public collectives::ForwardingCollective {
 public:
  InFlightCollective(std::unique_ptr<Collective> inner, int& most)
      : collectives::ForwardingCollective(std::move(inner)), most_(most) {}

  Operation StartAllReduce(Elements elements, Reduction reduction) override {
    const bool counts = elements.type == collectives::ElementType::kBFloat16;
    return Counted(counts, inner_->StartAllReduce(std::move(elements), reduction));
  }
  Operation StartReduceScatter(Elements mine, Elements all, Reduction reduction) override {
    const bool counts = all.type == collectives::ElementType::kBFloat16;
    return Counted(counts, inner_->StartReduceScatter(std::move(mine), std::move(all), reduction));
  }

 private:
  class CountedOperation final : public Pending {
   public:
    CountedOperation(int& in_flight, Operation inner) : in_flight_(in_flight), inner_(std::move(inner)) {}
    Status Wait() override {
      --in_flight_;
      return inner_->Wait();
    }

   private:
    int& in_flight_;
    const Operation inner_;
  };

  Operation Counted(bool counts, Operation operation) {
    if (!counts) return operation;
    most_ = std::max(most_, ++in_flight_);
    return std::make_unique<CountedOperation>(in_flight_, std::move(operation));
  }

  int& most_;
  int in_flight_ = 0;
};

TEST(DataExchange, FewBf16CopiesExistAtOnce) {
  for (const MeshShape mesh : {MeshShape{.replica = 2}, {.shard = 2}, {.replica = 2, .shard = 2}}) {
    for (const int zero : {0, 1, 2, 3}) {
      if ((zero > 0) != (mesh.shard > 1)) continue;
      OnThreads(static_cast<int>(mesh.ranks()), [&](Collective& world) {
        TrainingLayout layout{.zero = zero, .mesh = mesh, .micro_batches = 2};
        layout.exchange = {.reduce_in_bf16 = true, .bucket_bytes = 1};  // a bucket for each of the groups
        int most[] = {0, 0}, wrapped = 0;
        RankTrainer trainer(world, {.optimizer = kSgd}, layout, [&](RankTrainer::Group group) {
          int& count = most[wrapped++];
          return group ? std::make_unique<InFlightCollective>(std::move(group), count) : nullptr;
        });
        ASSERT_GT(trainer.model->buffer().groups().size(), 2);
        for (int step = 0; step < 2; ++step) trainer.Step(step);
        EXPECT_EQ(most[0], mesh.shard > 1 ? 2 : 0) << "along shard, zero " << zero;
        EXPECT_EQ(most[1], mesh.replica > 1 ? 2 : 0) << "along replica, zero " << zero;
      });
    }
  }
}

TEST(DataExchange, EvaluationBetweenStepsChangesNothing) {
  for (const int zero : {0, 1, 2, 3}) {
    OnThreads(2, [&](Collective& world) {
      TrainingLayout layout{.zero = zero};
      (zero > 0 ? layout.mesh.shard : layout.mesh.replica) = 2;
      const TrainingTask task{.model = "tied", .optimizer = kAdamw};
      RankTrainer plain(world, task, layout);
      std::vector<double> losses;
      for (int step = 0; step < 4; ++step) losses.push_back(plain.Step(step));
      auto again = world.Duplicate("again").value();
      RankTrainer evaluated(*again, task, layout);
      const at::Tensor ids = at::randint(67, {2, 9}, at::detail::createCPUGenerator(9), at::kLong);
      double before = 0;
      for (int step = 0; step < 4; ++step) {
        EXPECT_EQ(evaluated.Step(step), losses[static_cast<std::size_t>(step)]) << zero;
        const at::NoGradGuard no_gradients;
        for (int sample = 0; sample < 2; ++sample) {
          const double loss =
              evaluated.model->LossSum(ids.narrow(1, 0, 8).contiguous(), ids.narrow(1, 1, 8).contiguous())
                  .item<double>();
          EXPECT_NE(loss, before) << "it sees the new weights";
          if (sample == 1) before = loss;
        }
        if (zero == 3) {
          EXPECT_EQ(evaluated.model->buffer().ValueBytes(), 4 * evaluated.model->buffer().owned_size());
        }
      }
    });
  }
}

/// A rank that is lost, at whichever operation, ends all others with an error.
TEST(DataExchange, ALostRankEndsTheOthers) {
  for (const int zero : {0, 1, 2, 3}) {
    for (std::uint64_t lost_at = 0; lost_at < 24; lost_at += 5) {
      TrainingLayout layout{.zero = zero, .mesh = {.replica = 2}, .micro_batches = 2};
      if (zero > 0) layout.mesh.shard = 2;
      std::atomic<int> failed = 0;
      OnThreads(static_cast<int>(layout.mesh.ranks()), [&](Collective& world) {
        const auto wrap = [&](RankTrainer::Group group) {
          if (world.rank() != 1) return group;
          return collectives::MakeFaulty(std::move(group), {.lost_at = lost_at});
        };
        const auto ran = CatchTorch("training", [&] {
          RankTrainer trainer(world, {.optimizer = kAdamw}, layout, wrap);
          for (int step = 0; step < 20; ++step) trainer.Step(step);
        });
        if (!ran) ++failed;
      });
      EXPECT_EQ(failed, layout.mesh.ranks()) << layout.ToText() << " lost at " << lost_at;
    }
  }
}

TEST(UseOrder, ExpectsWhatItSaw) {
  UseOrder order;
  order.Restart();
  EXPECT_FALSE(order.Next());
  for (const std::size_t group : {0, 1, 2}) order.Add(group);
  order.Restart();
  EXPECT_EQ(order.Next(), 0u);
  EXPECT_EQ(order.Next(2), 2u);
  EXPECT_FALSE(order.Next(3));
  order.Add(0);
  EXPECT_EQ(order.Next(), 1u);
  order.Add(7);
  EXPECT_FALSE(order.Next()) << "not what was expected";
  order.Restart();
  order.Restart();
  EXPECT_EQ(order.Next(1), 7u) << "nothing was recorded since";
}

}  // namespace
}  // namespace millrace::engine
