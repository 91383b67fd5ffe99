// Pipelines of every schedule against one rank that has the whole model.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

#include "millrace/collectives/testing/counting.h"
#include "millrace/collectives/testing/forwarding.h"
#include "millrace/collectives/testing/run_ranks.h"
#include "millrace/engine/pipeline/tiny_pipeline.h"
#include "millrace/engine/testing/memory_meter.h"

#include <ATen/core/grad_mode.h>

namespace millrace::engine {
namespace {

using Group = std::unique_ptr<Collective>;
using enum PipelineSchedule;

struct Learnt {
  double loss = 0, evaluated = 0;
  std::map<std::string, at::Tensor> gradients;
};

/// Adds what a rank has learnt.
void AddTo(Learnt& learnt, Model& model, const PipelineSums& trained, const PipelineSums& evaluated) {
  learnt.loss += trained.loss;
  learnt.evaluated += evaluated.loss;
  for (const NamedParameter& parameter : model.Parameters()) {
    at::Tensor& sum = learnt.gradients[parameter.name];
    if (sum.defined()) EXPECT_TRUE(parameter.shared_by_stages) << parameter.name;
    sum = sum.defined() ? sum + parameter.gradient : parameter.gradient.clone();
  }
}

/// Three batches that differ in size.
std::vector<ModelBatch> HeldOut(const std::vector<std::unique_ptr<TinySample>>& samples) {
  std::vector<ModelBatch> batches;
  for (const auto& sample : samples) batches.push_back(sample->batch);
  return batches;
}
std::vector<std::unique_ptr<TinySample>> HeldOutSamples() {
  std::vector<std::unique_ptr<TinySample>> samples;
  for (const int i : {0, 1, 2}) samples.push_back(std::make_unique<TinySample>(100 + i, 2 + i % 2));
  return samples;
}

/// What one rank learns that passes the micro-batches through the whole model, without a runner.
Learnt LearnAlone(const std::shared_ptr<const ModelConfig>& config, at::ScalarType dtype, int micro_batches) {
  const auto model = TinyModel(config, dtype, {}, 0);
  PipelineSums trained, evaluated;
  for (int i = 0; i < micro_batches; ++i) {
    const TinySample sample(i);
    const at::Tensor loss = model->LossSum(sample.batch);
    loss.backward();
    trained.loss += loss.item<double>();
  }
  const at::NoGradGuard no_gradients;
  for (const auto& sample : HeldOutSamples()) evaluated.loss += model->LossSum(sample->batch).item<double>();
  Learnt learnt;
  AddTo(learnt, *model, trained, evaluated);
  return learnt;
}

/// What a rank of a pipeline does: trains, then evaluates, which must not disturb the gradients.
void LearnAndEvaluate(Model& model, Collective* group, const PipelineShape& shape, Learnt& learnt, std::mutex& mutex) {
  PipelineRunner runner(model, group, OptionsOf(shape));
  const Result<PipelineSums> trained = runner.Train(NextTiny);
  ASSERT_TRUE(trained) << trained.error().ToString();
  const at::Tensor gradients = model.buffer().gradients().clone();
  const std::vector<std::unique_ptr<TinySample>> samples = HeldOutSamples();
  const Result<PipelineSums> evaluated = runner.Evaluate(HeldOut(samples));
  ASSERT_TRUE(evaluated) << evaluated.error().ToString();
  EXPECT_TRUE(gradients.equal(model.buffer().gradients()));
  EXPECT_EQ(trained->waited > Duration::zero(), shape.ranks > 1);
  const std::lock_guard lock(mutex);
  AddTo(learnt, model, *trained, *evaluated);
}

struct LearnOptions {
  at::ScalarType dtype = at::kFloat;
  collectives::GroupKind kind = collectives::GroupKind::kThreads;
  Recompute recompute = Recompute::kNone;
};

Learnt LearnInPipeline(const std::shared_ptr<const ModelConfig>& config, const PipelineShape& shape,
                       const LearnOptions& options = {}) {
  Learnt learnt;
  std::mutex mutex;
  collectives::RunRanks(options.kind, shape.ranks, [&](Group group) {
    const auto model = TinyModel(config, options.dtype, shape, group->rank());
    model->SetRecompute(options.recompute);
    LearnAndEvaluate(*model, group.get(), shape, learnt, mutex);
  });
  return learnt;
}

void ExpectSame(const Learnt& got, const Learnt& want) {
  EXPECT_EQ(got.loss, want.loss);
  EXPECT_EQ(got.evaluated, want.evaluated);
  ASSERT_EQ(got.gradients.size(), want.gradients.size());
  for (const auto& [name, gradient] : want.gradients) {
    // The two uses of a tied embedding add up in another order.
    const bool tied = name.find("wte") != std::string::npos || name.find("word_embeddings") != std::string::npos;
    const at::Tensor& other = got.gradients.at(name);
    EXPECT_TRUE(tied ? at::allclose(other, gradient, 1e-4, 1e-6) : other.equal(gradient)) << name;
  }
}

std::vector<PipelineShape> ShapesOf(int micro_batches) {
  std::vector<PipelineShape> shapes = {{kSimple, 1, 1, micro_batches}, {kInterleaved, 1, 3, micro_batches}};
  for (const int ranks : {2, 3, 4}) {
    for (const PipelineSchedule schedule : {kSimple, k1F1B, kZeroBubble}) {
      shapes.push_back({schedule, ranks, 1, micro_batches});
    }
    for (const int stages : {2, 3}) shapes.push_back({kInterleaved, ranks, stages, micro_batches});
  }
  return shapes;
}

class PipelineFamilies : public ::testing::TestWithParam<std::tuple<std::string, at::ScalarType>> {};

TEST_P(PipelineFamilies, LearnWhatOneRankLearns) {
  const auto& [family, dtype] = GetParam();
  const auto config = TinyConfig(family);
  const std::vector<int> counts = dtype == at::kFloat ? std::vector{1, 2, 3, 4, 7} : std::vector{3, 4};
  for (const int micro_batches : counts) {
    const Learnt alone = LearnAlone(config, dtype, micro_batches);
    for (const PipelineShape& shape : ShapesOf(micro_batches)) {
      SCOPED_TRACE(shape.ToText());
      ExpectSame(LearnInPipeline(config, shape, {.dtype = dtype}), alone);
      if (HasFailure()) return;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families, PipelineFamilies,
                         ::testing::Combine(::testing::Values("llama", "gpt2", "gptj", "bert"),
                                            ::testing::Values(at::kFloat, at::kBFloat16)),
                         [](const auto& info) {
                           return std::get<0>(info.param) + (std::get<1>(info.param) == at::kFloat ? "F32" : "BF16");
                         });

class PipelineGroups : public ::testing::TestWithParam<collectives::GroupKind> {};

TEST_P(PipelineGroups, LearnWhatOneRankLearns) {
  const auto config = TinyConfig("llama");
  const Learnt alone = LearnAlone(config, at::kFloat, 5);
  for (const PipelineShape& shape :
       {PipelineShape{kSimple, 2, 1, 5}, PipelineShape{k1F1B, 3, 1, 5}, PipelineShape{kInterleaved, 2, 3, 5},
        PipelineShape{kInterleaved, 3, 2, 5}, PipelineShape{kZeroBubble, 4, 1, 5}}) {
    SCOPED_TRACE(shape.ToText());
    ExpectSame(LearnInPipeline(config, shape, {.kind = GetParam()}), alone);
  }
}

INSTANTIATE_TEST_SUITE_P(Over, PipelineGroups, ::testing::ValuesIn(collectives::kEveryGroupKind),
                         collectives::GroupKindName);

TEST(Pipeline, LearnsTheSameWithRecomputation) {
  for (const std::string_view family : {"llama", "gpt2"}) {
    const auto config = TinyConfig(family);
    const Learnt alone = LearnAlone(config, at::kBFloat16, 4);
    for (const Recompute recompute : {Recompute::kSelective, Recompute::kFull}) {
      for (const PipelineShape& shape : {PipelineShape{kZeroBubble, 3, 1, 4}, PipelineShape{kInterleaved, 2, 2, 4}}) {
        SCOPED_TRACE(shape.ToText());
        ExpectSame(LearnInPipeline(config, shape, {.dtype = at::kBFloat16, .recompute = recompute}), alone);
      }
    }
  }
}

/// Two tensor-parallel ranks that divide the tokens, with two stages: what they learn without stages.
TEST(Pipeline, PassesOnTheRowsOfEachTensorRank) {
  const auto config = TinyConfig("llama", 3);
  std::map<std::pair<int, std::string>, at::Tensor> learnt[2];  // by tensor rank and name; without, with a pipeline
  double losses[2] = {};
  for (const int stages : {1, 2}) {
    const PipelineShape shape{k1F1B, stages, 1, 3};
    std::mutex mutex;
    collectives::RunRanks(collectives::GroupKind::kThreads, 2 * stages, [&](Group world) {
      const int stage = world->rank() / 2, slice = world->rank() % 2;
      const std::vector<int> across = {2 * stage, 2 * stage + 1},
                             along = stages == 1 ? std::vector{slice} : std::vector{slice, slice + 2};
      const Group tensor = world->Split("tensor", across).value(), pipeline = world->Split("pipeline", along).value();
      const auto model =
          TinyModel(config, at::kFloat, shape, stage, {.group = tensor.get(), .sequence_parallel = true});
      const auto sums = PipelineRunner(*model, pipeline.get(), OptionsOf(shape)).Train(NextTiny);
      ASSERT_TRUE(sums) << sums.error().ToString();
      const std::lock_guard lock(mutex);
      if (slice == 0) losses[stages - 1] += sums->loss;
      for (const NamedParameter& each : model->Parameters()) {
        learnt[stages - 1][{slice, each.name}] = each.gradient.clone();
      }
    });
  }
  EXPECT_EQ(losses[0], losses[1]);
  ASSERT_EQ(learnt[0].size(), learnt[1].size());
  for (const auto& [where, gradient] : learnt[0]) EXPECT_TRUE(learnt[1].at(where).equal(gradient)) << where.second;
}

TEST(Pipeline, SendsWhatTheFormulaSays) {
  const auto config = TinyConfig("llama");
  for (const PipelineShape& shape : ShapesOf(3)) {
    SCOPED_TRACE(shape.ToText());
    const auto trained = std::make_shared<collectives::Traffic>(), evaluated = std::make_shared<collectives::Traffic>();
    collectives::RunRanks(collectives::GroupKind::kThreads, shape.ranks, [&](Group group) {
      const auto model = TinyModel(config, at::kBFloat16, shape, group->rank());
      const Group other = collectives::MakeCounting(group->Duplicate("evaluation").value(), evaluated);
      group = collectives::MakeCounting(std::move(group), trained);
      EXPECT_TRUE(PipelineRunner(*model, group.get(), OptionsOf(shape)).Train(NextTiny));
      EXPECT_TRUE(PipelineRunner(*model, other.get(), OptionsOf(shape)).Evaluate(HeldOut(HeldOutSamples())));
    });
    // Bytes of bfloat16 hidden states; stages of one rank do not send.
    const std::uint64_t links = shape.ranks == 1 ? 0 : shape.stages() - 1;
    const std::uint64_t row_bytes = kTinyLength * kTinyHidden * 2, rows = kTinyRows * 3, held_out = 2 + 3 + 2;
    EXPECT_EQ(trained->bytes(collectives::Traffic::kSend), 2 * links * rows * row_bytes);
    EXPECT_EQ(trained->bytes(collectives::Traffic::kReceive), 2 * links * rows * row_bytes);
    EXPECT_EQ(evaluated->bytes(collectives::Traffic::kSend), links * held_out * row_bytes);
    EXPECT_EQ(trained->operations(collectives::Traffic::kAllReduce), 0u);
  }
}

TEST(Pipeline, AsksForEachBatchOnceAndLetsItGo) {
  const auto config = TinyConfig("llama");
  for (const PipelineShape& shape : ShapesOf(7)) {
    SCOPED_TRACE(shape.ToText());
    collectives::RunRanks(collectives::GroupKind::kThreads, shape.ranks, [&](Group group) {
      const auto model = TinyModel(config, at::kFloat, shape, group->rank());
      std::vector<std::weak_ptr<const ModelBatch>> given;
      std::size_t most = 0;
      const auto alive = [&] { return std::ranges::count_if(given, [](const auto& each) { return !each.expired(); }); };
      const auto sums = PipelineRunner(*model, group.get(), OptionsOf(shape)).Train([&](int i) {
        EXPECT_EQ(i, static_cast<int>(given.size()));
        most = std::max(most, static_cast<std::size_t>(alive()) + 1);
        auto next = NextTiny(i);
        given.emplace_back(*next);
        return next;
      });
      EXPECT_TRUE(sums);
      EXPECT_EQ(given.size(), 7u);
      EXPECT_EQ(alive(), 0);
      // A batch is needed until its last forward pass. Two groups of micro-batches may be under way.
      EXPECT_LE(most, static_cast<std::size_t>(shape.virtual_stages == 1 ? 1 : 2 * shape.ranks));
    });
  }
}

/// Frees messages at known times, in the rank's own thread, whose meter counts them. A group frees them in threads of
/// its own, uncounted, when it is done with them. So it is sent a copy that no meter counts, and is lent what it
/// receives into.
class MeteredMessages : public collectives::ForwardingCollective {
 public:
  using collectives::ForwardingCollective::ForwardingCollective;
  Operation StartSend(Elements elements, int to) override {
    const auto copy = std::make_shared<std::vector<std::byte>>(elements.begin(), elements.begin() + elements.bytes());
    elements.data = copy->data();
    elements.owner = copy;
    return inner_->StartSend(std::move(elements), to);
  }
  Operation StartReceive(Elements elements, int from) override {
    elements.owner.reset();
    return inner_->StartReceive(std::move(elements), from);
  }
};

/// The most memory that rank 0 has used.
std::int64_t PeakOf(const PipelineShape& shape) {
  const auto config = TinyConfig("llama", 8);
  std::int64_t peak = 0;
  collectives::RunRanks(collectives::GroupKind::kThreads, shape.ranks, [&](Group group) {
    MeteredMessages metered(std::move(group));
    const auto model = TinyModel(config, at::kFloat, shape, metered.rank());
    PipelineRunner runner(*model, &metered, OptionsOf(shape));
    const MemoryMeter meter;
    ASSERT_TRUE(runner.Train(NextTiny));
    if (metered.rank() == 0) peak = meter.peak();
  });
  return peak;
}

TEST(Pipeline, MemoryDoesNotGrowWithTheMicroBatches) {
  for (const PipelineSchedule schedule : {k1F1B, kZeroBubble, kInterleaved}) {
    PipelineShape shape{schedule, 2, schedule == kInterleaved ? 2 : 1, 8};
    const std::int64_t few = PeakOf(shape);
    shape.micro_batches = 20;
    EXPECT_EQ(PeakOf(shape), few) << shape.ToText();
  }
  const std::int64_t few = PeakOf({kSimple, 2, 1, 8}), many = PeakOf({kSimple, 2, 1, 12});
  EXPECT_GE(many, few * 5 / 4) << "all micro-batches are in flight";
  // Within one rank there are no messages.
  const PipelineShape alone{kInterleaved, 1, 2, 8};
  EXPECT_EQ(PeakOf(alone), PeakOf({kInterleaved, 1, 2, 20}));
}

TEST(Pipeline, EvaluatesAnyNumberOfBatches) {
  const auto config = TinyConfig("gpt2");
  for (const PipelineShape& shape : {PipelineShape{k1F1B, 3, 1, 4}, {kInterleaved, 2, 3, 4}}) {
    for (const int count : {0, 1, 2, 23}) {
      double loss = 0;
      std::mutex mutex;
      std::vector<std::unique_ptr<TinySample>> samples;
      for (int i = 0; i < count; ++i) samples.push_back(std::make_unique<TinySample>(i, 2 + i % 3));
      collectives::RunRanks(collectives::GroupKind::kDelayed, shape.ranks, [&](Group group) {
        const auto model = TinyModel(config, at::kFloat, shape, group->rank());
        const auto sums = PipelineRunner(*model, group.get(), OptionsOf(shape)).Evaluate(HeldOut(samples));
        ASSERT_TRUE(sums) << sums.error().ToString();
        const std::lock_guard lock(mutex);
        loss += sums->loss;
      });
      const auto whole = TinyModel(config, at::kFloat, {}, 0);
      const at::NoGradGuard no_gradients;
      double expected = 0;
      for (const auto& sample : samples) expected += whole->LossSum(sample->batch).item<double>();
      EXPECT_EQ(loss, expected) << shape.ToText() << ", " << count << " batches";
    }
  }
}

TEST(Pipeline, RefusesAnotherNumberOfStages) {
  const auto model = TinyModel(TinyConfig("llama"), at::kFloat, {}, 0);
  EXPECT_ANY_THROW(PipelineRunner(*model, nullptr, {.virtual_stages = 2}));
}

}  // namespace
}  // namespace millrace::engine
