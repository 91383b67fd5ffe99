// What happens to a pipeline if one of its ranks fails.
#include <gtest/gtest.h>

#include <stdexcept>

#include "millrace/base/hash/random.h"
#include "millrace/collectives/testing/run_ranks.h"
#include "millrace/engine/pipeline/tiny_pipeline.h"

namespace millrace::engine {
namespace {

using enum PipelineSchedule;

enum class PipelineFault { kNone, kLost, kNoData, kThrows, kBadLabel, kOtherSize };

/// One run of a step and an evaluation, in which every choice follows from the seed.
class FaultyRun {
 public:
  FaultyRun(const PipelineShape& shape, std::uint64_t seed) : shape_(shape), seed_(seed) {
    Random random(seed);
    culprit_ = static_cast<int>(random.Below(static_cast<std::uint64_t>(shape.ranks)));
    fault_ = static_cast<PipelineFault>(random.Below(6));
    micro_batch_ = 1 + static_cast<int>(random.Below(static_cast<std::uint64_t>(shape.micro_batches - 1)));
    operation_ = random.Below(6);
    if (fault_ == PipelineFault::kBadLabel) culprit_ = shape.ranks - 1;  // that has the last stage
  }

  /// What a rank does. Returns its first error.
  Status Run(std::unique_ptr<Collective> group, Model& model) const {
    collectives::FaultPlan plan{.seed = seed_, .most_delay = std::chrono::microseconds(seed_ % 4 == 0 ? 100 : 0)};
    const bool guilty = group->rank() == culprit_;
    if (guilty && fault_ == PipelineFault::kLost) plan.lost_at = operation_;
    const auto faulty = collectives::MakeFaulty(std::move(group), plan);
    PipelineRunner runner(model, faulty.get(), OptionsOf(shape_));
    MR_TRY(runner.Train([&](int i) { return guilty && i == micro_batch_ ? Faulty(i) : NextTiny(i); }));
    std::vector<std::unique_ptr<TinySample>> samples;
    std::vector<ModelBatch> batches;
    for (int i = 0; i < shape_.micro_batches; ++i) {
      batches.push_back(samples.emplace_back(std::make_unique<TinySample>(i))->batch);
    }
    MR_TRY(runner.Evaluate(batches));
    return {};
  }

  /// Checks what the ranks returned.
  void Check(const std::vector<Status>& outcomes) const {
    SCOPED_TRACE(fmt::format("{}, seed {}: rank {} is to blame for {} at micro-batch {} or operation {}",
                             shape_.ToText(), seed_, culprit_, static_cast<int>(fault_), micro_batch_, operation_));
    for (int rank = 0; rank < shape_.ranks; ++rank) {
      const Status& outcome = outcomes[static_cast<std::size_t>(rank)];
      if (fault_ == PipelineFault::kNone) {
        EXPECT_TRUE(outcome) << outcome.error().ToString();
        continue;
      }
      ASSERT_FALSE(outcome) << "rank " << rank << " did not notice";
      const std::string text = outcome.error().ToString();
      // The others read the reason, or find that the rank has left.
      const bool is_guilty = rank == culprit_;
      EXPECT_NE(text.find(is_guilty ? Reason() : "rank"), std::string::npos) << text;
      if (is_guilty) {
        EXPECT_EQ(outcome.error().code(), ReasonCode()) << text;
      }
    }
  }

 private:
  Result<std::shared_ptr<const ModelBatch>> Faulty(int micro_batch) const {
    if (fault_ == PipelineFault::kNoData) return Fail(Code::kNotFound, "injected: no such object");
    if (fault_ == PipelineFault::kThrows) throw std::runtime_error("injected: exception");
    if (fault_ == PipelineFault::kOtherSize) {
      const auto sample = std::make_shared<TinySample>(micro_batch, kTinyRows + 1);
      return std::shared_ptr<const ModelBatch>(sample, &sample->batch);
    }
    const auto sample = std::make_shared<TinySample>(micro_batch);
    if (fault_ == PipelineFault::kBadLabel) sample->batch.labels[1][3] = kTinyVocab;
    return std::shared_ptr<const ModelBatch>(sample, &sample->batch);
  }
  std::string_view Reason() const {
    switch (fault_) {
      case PipelineFault::kLost:
        return "rank";  // has left, or destroyed its group
      case PipelineFault::kBadLabel:
        return "is not one of";
      case PipelineFault::kOtherSize:
        return "has 48 tokens, those before it 32";
      default:
        return "injected: ";
    }
  }
  Code ReasonCode() const {
    switch (fault_) {
      case PipelineFault::kLost:
        return Code::kUnavailable;
      case PipelineFault::kNoData:
        return Code::kNotFound;
      case PipelineFault::kOtherSize:
        return Code::kInvalidArgument;
      default:
        return Code::kInternal;
    }
  }

  const PipelineShape shape_;
  const std::uint64_t seed_;
  int culprit_ = 0, micro_batch_ = 0;
  PipelineFault fault_ = PipelineFault::kNone;
  std::uint64_t operation_ = 0;
};

TEST(PipelineFailures, EndAllRanksInEveryRun) {
  const auto config = TinyConfig("gpt2", 4);
  for (const PipelineShape& shape :
       {PipelineShape{k1F1B, 3, 1, 5}, PipelineShape{kZeroBubble, 3, 1, 5}, PipelineShape{kSimple, 2, 1, 4},
        PipelineShape{kInterleaved, 2, 2, 5}, PipelineShape{kInterleaved, 3, 2, 4}}) {
    std::vector<std::unique_ptr<Model>> models;
    for (int rank = 0; rank < shape.ranks; ++rank) models.push_back(TinyModel(config, at::kFloat, shape, rank));
    for (std::uint64_t seed = 1; seed <= 60; ++seed) {
      const FaultyRun run(shape, seed);
      std::vector<Status> outcomes(models.size());
      const TimePoint start = SystemClock().Now();
      collectives::RunRanks(collectives::GroupKind::kThreads, shape.ranks, [&](std::unique_ptr<Collective> group) {
        const auto rank = static_cast<std::size_t>(group->rank());
        outcomes[rank] = run.Run(std::move(group), *models[rank]);
      });
      EXPECT_LT(SystemClock().Now() - start, std::chrono::seconds(20)) << "ended by the time-out";
      run.Check(outcomes);
      if (HasFailure()) return;
    }
  }
}

TEST(PipelineFailures, EndRanksOnSeveralMachines) {
  const auto config = TinyConfig("gpt2", 4);
  const PipelineShape shape{k1F1B, 3, 1, 5};
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    const FaultyRun run(shape, seed);
    std::vector<Status> outcomes(3);
    collectives::RunRanks(collectives::GroupKind::kTcp, shape.ranks, [&](std::unique_ptr<Collective> group) {
      const int rank = group->rank();
      const auto model = TinyModel(config, at::kFloat, shape, rank);
      outcomes[static_cast<std::size_t>(rank)] = run.Run(std::move(group), *model);
    });
    run.Check(outcomes);
  }
}

TEST(PipelineFailures, AreErrorsOfOneRank) {
  const auto model = TinyModel(TinyConfig("gpt2", 2), at::kFloat, {}, 0);
  PipelineRunner runner(*model, nullptr, {.micro_batches = 2});
  const auto failed = runner.Train([](int i) { return i == 0 ? NextTiny(0) : Fail(Code::kNotFound, "no data"); });
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code(), Code::kNotFound);
  EXPECT_EQ(failed.error().ToString(), "training step: no data");
  EXPECT_TRUE(runner.Train(NextTiny)) << "the runner itself is as it was";
}

}  // namespace
}  // namespace millrace::engine
