// What the planner says of a rank's memory beside what the ranks of a mesh hold.
#include <gtest/gtest.h>

#include <vector>

#include "millrace/engine/ops/common/deferred_work.h"
#include "millrace/engine/testing/train_ranks.h"
#include "millrace/plan/layout_cost.h"
#include "millrace/plan/plan.h"
#include "millrace/plan/sharded_passes.h"
#include "tests/engine/counting_allocator.h"

namespace millrace::engine {
namespace {

/// Trains until the pools have all that they need. The blocks of gathered values and of gradients that wait must be
/// those that were planned.
void ComparePools(const std::string& model, const TrainingLayout& layout, at::ScalarType dtype) {
  const int ranks = static_cast<int>(layout.mesh.ranks()), data_ranks = layout.mesh.shard;
  const plan::TrainingSetup setup{.model = TinyConfig(model)->Shape(),
                                  .ranks = ranks,
                                  .ranks_per_machine = ranks,
                                  .global_batch = RankTrainer::kRows,
                                  .micro_batch = RankTrainer::kRows / data_ranks / layout.micro_batches,
                                  .sequence_length = RankTrainer::kLength,
                                  .bf16 = dtype == at::kBFloat16};
  const auto planned = plan::MakeLayout(setup, {.pipeline = layout.mesh.pipeline,
                                                .schedule = layout.schedule,
                                                .zero = layout.zero,
                                                .reshard = layout.exchange.reshard,
                                                .reduce_in_bf16 = layout.exchange.reduce_in_bf16})
                           .value();
  const plan::LayoutCost cost = plan::CostOfLayout(setup, planned.options, nullptr);
  const std::vector<plan::RankShare> shares = plan::SharesOf(setup, planned, cost);
  OnThreads(ranks, [&](Collective& world) {
    RankTrainer trainer(world, {.model = model, .dtype = dtype}, layout);
    for (int step = 0; step < 4; ++step) trainer.Step(step);
    const plan::RankShare& share = shares[static_cast<std::size_t>(trainer.pipeline->rank())];
    EXPECT_EQ(plan::PooledBytes(planned, share, setup.element_bytes()), trainer.model->buffer().PooledBytes())
        << model << ", " << layout.ToText() << ", reshard " << layout.exchange.reshard << ", reduce in bf16 "
        << layout.exchange.reduce_in_bf16 << ", rank " << world.rank();
  });
}

TEST(PlanOfRanks, PoolsAreThoseOfTheEngine) {
  for (const std::string model : {"llama", "tied", "gpt2"}) {
    for (const int zero : {2, 3}) {
      for (const int pipeline : {1, 2}) {
        for (const auto schedule :
             {PipelineSchedule::kSimple, PipelineSchedule::k1F1B, PipelineSchedule::kZeroBubble}) {
          if (pipeline == 1 && schedule != PipelineSchedule::k1F1B) continue;
          for (const int micro_batches : {1, 2, 6}) {
            for (const bool reshard : {true, false}) {
              const bool reduce_in_bf16 = micro_batches == 2 && zero == 3;
              ComparePools(model,
                           {.zero = zero,
                            .mesh = {.pipeline = pipeline, .shard = 2},
                            .micro_batches = micro_batches,
                            .exchange = {.reshard = reshard, .reduce_in_bf16 = reduce_in_bf16},
                            .schedule = schedule},
                           micro_batches == 1 ? at::kBFloat16 : at::kFloat);
            }
          }
        }
      }
    }
  }
}

/// The first stage of a pipeline whose backward passes put off the gradients of weights.
TEST(PlanOfRanks, PeaksOfPassesThatDeferAreThoseOfTheEngine) {
  static CountingAllocator allocator;
  c10::SetCPUAllocator(&allocator, 1);
  constexpr std::int64_t kTokens = 256, kRows = 2;
  const Json json = {{"model_type", "llama"},         {"vocab_size", 1024},     {"hidden_size", 128},
                     {"intermediate_size", 352},      {"num_hidden_layers", 8}, {"num_attention_heads", 4},
                     {"max_position_embeddings", 256}};
  const auto config = ParseModelConfig(json, "config.json").value();
  const plan::TrainingSetup setup{.model = config->Shape(),
                                  .ranks = 2,
                                  .ranks_per_machine = 2,
                                  .global_batch = 4 * kRows,
                                  .micro_batch = kRows,
                                  .sequence_length = kTokens};
  for (const auto recompute : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
    const ParallelOptions options{.pipeline = 2, .schedule = PipelineSchedule::kZeroBubble, .recompute = recompute};
    const auto model =
        MakeModel(config, at::kFloat, at::kCPU, 7, {.stages = StagesOfRank(*config, options, kTokens, /*rank=*/0)})
            .value();
    model->SetRecompute(recompute);
    model->buffer().EnableGradients();
    const at::Tensor ids = at::randint(1024, {kRows, kTokens}, at::detail::createCPUGenerator(3), at::kLong);
    const at::Tensor gradient = at::ones({kRows * kTokens, 128});
    const std::int64_t before = CountingAllocator::live;
    CountingAllocator::peak = 0;
    std::vector<at::Tensor> outputs;
    ops::DeferredWork deferred;
    for (int i = 0; i < 2; ++i) outputs.push_back(model->Forward(0, {.inputs = ids}));
    {
      const ops::DeferScope defer(deferred);
      model->Backward(0, outputs[0], gradient);
    }
    deferred.RunAll();
    // The pipeline keeps the graph of an output, and not its values.
    const auto seen =
        static_cast<double>(CountingAllocator::peak - before) - 2 * static_cast<double>(gradient.nbytes());
    const plan::MemoryUse use = plan::MakePlan(setup, options, plan::Machine::ThisMachine()).value().memory[0];
    EXPECT_NEAR(static_cast<double>(use[plan::MemoryKind::kActivations] + use[plan::MemoryKind::kWorking]), seen,
                0.05 * seen)
        << RecomputeName(recompute);
  }
}

}  // namespace
}  // namespace millrace::engine
