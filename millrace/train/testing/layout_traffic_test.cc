// What the ranks of each layout exchange in a step is what the planner says.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/collectives/testing/counting.h"
#include "millrace/engine/parameters/scalar_types.h"
#include "millrace/plan/traffic.h"
#include "millrace/train/testing/layout_runs.h"

namespace millrace::train {
namespace {

/// Operations and bytes, by group and kind.
using Exchanged = std::map<std::pair<std::string, collectives::Traffic::Kind>, std::array<std::int64_t, 2>>;

Exchanged ExchangedIn(const collectives::GroupTraffic& groups) {
  Exchanged exchanged;
  for (const auto& [name, traffic] : groups) {
    for (int i = 0; i < collectives::Traffic::kKinds; ++i) {
      const auto kind = static_cast<collectives::Traffic::Kind>(i);
      const std::array counts{static_cast<std::int64_t>(traffic.operations(kind)),
                              static_cast<std::int64_t>(traffic.bytes(kind))};
      if (counts[0] > 0) exchanged[{name, kind}] = counts;
    }
  }
  return exchanged;
}

/// What the planner says of a rank of the pipeline, of those the first shard and the first tensor rank. `purpose`: of
/// these exchanges alone; of pairs of answers, if it is that of their reference.
Exchanged PlannedFor(const Options& options, int ranks, std::size_t pipeline_rank, std::string_view purpose = {}) {
  static const std::map<std::string_view, std::string> kGroups = {
      {"all", ""},          {"data", "replica"},      {"ends", "tied"},   {"shard", "shard"}, {"replica", "replica"},
      {"tensor", "tensor"}, {"pipeline", "pipeline"}, {"stage", "stage"}, {"model", "model"}};
  static const std::map<plan::ExchangeKind, collectives::Traffic::Kind> kKinds = {
      {plan::ExchangeKind::kAllReduce, collectives::Traffic::kAllReduce},
      {plan::ExchangeKind::kAllGather, collectives::Traffic::kAllGather},
      {plan::ExchangeKind::kReduceScatter, collectives::Traffic::kReduceScatter},
      {plan::ExchangeKind::kSend, collectives::Traffic::kSend},
      {plan::ExchangeKind::kReceive, collectives::Traffic::kReceive}};
  plan::TrainingSetup setup = SetupOf(options, ranks);
  setup.compares_pairs = options.data.objective == data::Objective::kDpo || purpose == plan::kReferencePurpose;
  const plan::Layout layout = plan::MakeLayout(setup, options.parallel).value();
  const plan::LayoutCost cost = plan::CostOfLayout(setup, options.parallel, nullptr);
  const std::vector<plan::RankShare> shares = plan::SharesOf(setup, layout, cost);
  Exchanged planned;
  for (const plan::TrafficLine& line : plan::TrafficOf(setup, layout, cost, shares[pipeline_rank])) {
    if (!purpose.empty() && line.purpose != purpose) continue;
    auto& counts = planned[{kGroups.at(line.axis), kKinds.at(line.kind)}];
    counts[0] += line.operations;
    counts[1] += line.bytes;
  }
  return planned;
}

class LayoutTrafficTest : public LayoutsTest {
 protected:
  /// Returns what each rank exchanges in a run of `steps` steps.
  std::vector<Exchanged> ExchangedInRun(Options options, int ranks, std::uint64_t steps) {
    std::vector<collectives::GroupTraffic> traffic(static_cast<std::size_t>(ranks));
    wrap_ = [&](int rank, std::unique_ptr<engine::Collective> world) {
      return collectives::MakeCountingByGroup(std::move(world), traffic[static_cast<std::size_t>(rank)]);
    };
    options.steps = steps;
    const Ran ran = RunRanks(options, ranks);
    EXPECT_TRUE(ran.outcome) << ran.outcome.error().ToString();
    std::vector<Exchanged> exchanged;
    for (const collectives::GroupTraffic& each : traffic) exchanged.push_back(ExchangedIn(each));
    return exchanged;
  }

  /// Returns what each rank exchanges in `some` and not in `others`.
  static std::vector<Exchanged> Difference(std::vector<Exchanged> some, const std::vector<Exchanged>& others) {
    for (std::size_t rank = 0; rank < some.size(); ++rank) {
      for (const auto& [key, counts] : others[rank]) {
        for (std::size_t i = 0; i < counts.size(); ++i) some[rank][key][i] -= counts[i];
      }
      std::erase_if(some[rank], [](const auto& each) { return each.second[0] == 0; });
    }
    return some;
  }
  static engine::Mesh MeshOf(const Options& options, int ranks) {
    const engine::MeshShape shape = engine::ShapeOf(options.parallel, ranks).value();
    return engine::Mesh::Make(shape, ranks, options.parallel.placement).value();
  }
  /// The planner says what the first shard and the first tensor rank exchange.
  static bool IsPlanned(const engine::Mesh& mesh, int rank) {
    return mesh.Coordinate(rank, engine::MeshAxis::kShard) == 0 &&
           mesh.Coordinate(rank, engine::MeshAxis::kTensor) == 0;
  }

  /// Expects the ranks to exchange in a step what the planner says.
  void ExpectPlannedTraffic(const Options& options, int ranks) {
    // Without what a run exchanges before its first step and after its last one.
    const std::vector<Exchanged> short_run = ExchangedInRun(options, ranks, 2);
    const std::vector<Exchanged> step = Difference(ExchangedInRun(options, ranks, 3), short_run);
    const engine::Mesh mesh = MeshOf(options, ranks);
    for (int rank = 0; rank < ranks; ++rank) {
      if (!IsPlanned(mesh, rank)) continue;
      const auto stage = static_cast<std::size_t>(mesh.Coordinate(rank, engine::MeshAxis::kPipeline));
      EXPECT_EQ(step[static_cast<std::size_t>(rank)], PlannedFor(options, ranks, stage)) << "rank " << rank;
    }
  }
};

TEST_F(LayoutTrafficTest, IsWhatThePlannerSays) {
  for (const Choices& choices : PairwiseLayouts()) {
    if (choices.ranks() == 1) continue;
    SCOPED_TRACE(choices.ToText());
    Options options = OptionsOf(choices);
    options.model_config["vocab_size"] = 331;  // divides among no ranks
    if (choices[Choices::kRecompute] % 2 == 1) options.precision = at::kBFloat16;
    ExpectPlannedTraffic(options, choices.ranks());
  }
}

/// Replicas of shards (hybrid sharding) of stages, and of divided layers.
TEST_F(LayoutTrafficTest, OfReplicasOfShardsIsWhatThePlannerSays) {
  Options options = OptionsOf(kQwen3, 1);
  options.model_config["vocab_size"] = 331;
  for (const int zero : {1, 2, 3}) {
    options.parallel = {.data = 4, .shard = 2, .tensor = 2, .sequence = zero == 2, .zero = zero};
    SCOPED_TRACE(fmt::format("zero {}", zero));
    ExpectPlannedTraffic(options, 8);
    options.parallel = {.data = 4, .shard = 2, .pipeline = 2, .zero = zero, .reshard = zero != 3};
    for (const PipelineSchedule schedule : {PipelineSchedule::kSimple, PipelineSchedule::k1F1B,
                                            PipelineSchedule::kInterleaved, PipelineSchedule::kZeroBubble}) {
      SCOPED_TRACE(engine::PipelineScheduleName(schedule));
      options.parallel.schedule = schedule;
      options.parallel.virtual_stages = schedule == PipelineSchedule::kInterleaved ? 2 : 1;
      ExpectPlannedTraffic(options, 8);
    }
  }
}

/// Whole steps over pairs of answers. The head exchanges sums for each token of an answer, while the planner takes all
/// tokens to be learnt: so of its gathers, only the number is compared.
TEST_F(LayoutTrafficTest, OfPairsIsWhatThePlannerSays) {
  std::string lines;
  for (int i = 0; i < 60; ++i) {
    lines += DumpJson({{"prompt", "a"}, {"chosen", std::string(1 + i % 5, 'b')}, {"rejected", "c"}}) + "\n";
  }
  ASSERT_TRUE(WriteFileAtomic(folder_->path() / "pairs.json", AsBytes(lines)));
  for (const engine::ParallelOptions& parallel : {engine::ParallelOptions{},
                                                  {.pipeline = 2, .schedule = PipelineSchedule::kZeroBubble},
                                                  {.tensor = 2, .pipeline = 2},
                                                  {.tensor = 4, .sequence = true},
                                                  {.pipeline = 2, .zero = 1},
                                                  {.shard = 2, .tensor = 2, .zero = 2},
                                                  {.zero = 3},
                                                  {.shard = 2, .pipeline = 2, .zero = 3, .reshard = false}}) {
    constexpr int kRanks = 4;
    SCOPED_TRACE(fmt::format("pipeline {} tensor {} zero {}", parallel.pipeline, parallel.tensor, parallel.zero));
    Options options = OptionsOf(kLlama);
    options.model_config["vocab_size"] = 331;
    options.lora = engine::LoraOptions{.rank = 4};
    options.data.objective = data::Objective::kDpo;
    options.data.sources = {{.url = (folder_->path() / "pairs.json").native(), .format = "jsonl"}};
    options.parallel = parallel;
    const std::vector<Exchanged> short_run = ExchangedInRun(options, kRanks, 2);
    std::vector<Exchanged> step = Difference(ExchangedInRun(options, kRanks, 3), short_run);
    const engine::Mesh mesh = MeshOf(options, kRanks);
    for (int rank = 0; rank < kRanks; ++rank) {
      if (!IsPlanned(mesh, rank)) continue;
      Exchanged planned =
          PlannedFor(options, kRanks, static_cast<std::size_t>(mesh.Coordinate(rank, engine::MeshAxis::kPipeline)));
      Exchanged& seen = step[static_cast<std::size_t>(rank)];
      const auto gathers = std::pair("tensor", collectives::Traffic::kAllGather);
      if (planned.contains(gathers)) {
        EXPECT_LE(seen[gathers][1], planned[gathers][1]);
        seen[gathers][1] = planned[gathers][1];
      }
      EXPECT_EQ(seen, planned) << "rank " << rank;
    }
  }
}

/// The reference of pairs makes the passes of an evaluation, which any model can make.
TEST_F(LayoutTrafficTest, OfAnEvaluationIsThatOfTheReference) {
  constexpr int kSamples = 8;
  for (const auto& [family, parallel] : std::vector<std::pair<int, engine::ParallelOptions>>{
           {kLlama, {.tensor = 2, .pipeline = 2}},
           {kQwen3, {.tensor = 4, .sequence = true}},
           {kLlama, {.pipeline = 2, .schedule = PipelineSchedule::kInterleaved, .virtual_stages = 2}},
           {kLlama, {.zero = 3}},
           {kGpt2, {.zero = 3, .reshard = false}},
           {kGpt2, {.shard = 2, .pipeline = 2, .zero = 3}},
           {kGptJ, {.shard = 2, .tensor = 2, .sequence = true, .zero = 3}}}) {
    constexpr int kRanks = 4;
    Options options = OptionsOf(family, 1);
    options.model_config["vocab_size"] = 331;
    options.parallel = parallel;
    options.eval.sources = options.data.sources;
    options.eval.samples = kSamples;
    const auto step_of = [&](std::uint64_t eval_every) {
      options.eval.every_steps = eval_every;
      const std::vector<Exchanged> short_run = ExchangedInRun(options, kRanks, 2);
      return Difference(ExchangedInRun(options, kRanks, 3), short_run);
    };
    const std::vector<Exchanged> evaluated = Difference(step_of(1), step_of(100));
    options.global_batch = kSamples;
    const engine::Mesh mesh = MeshOf(options, kRanks);
    for (int rank = 0; rank < kRanks; ++rank) {
      if (!IsPlanned(mesh, rank)) continue;
      const auto stage = static_cast<std::size_t>(mesh.Coordinate(rank, engine::MeshAxis::kPipeline));
      Exchanged planned = PlannedFor(options, kRanks, stage, plan::kReferencePurpose);
      planned[{"", collectives::Traffic::kAllReduce}] = {1, 72};  // the evaluation's sums
      EXPECT_EQ(evaluated[static_cast<std::size_t>(rank)], planned)
          << "family " << family << " rank " << rank << " tensor " << parallel.tensor << " pipeline "
          << parallel.pipeline << " zero " << parallel.zero;
    }
  }
}

/// Labels are counted before the passes only where the loss adds two means.
TEST_F(LayoutTrafficTest, OfMaskedTokensAloneHasNoCountOfLabels) {
  for (const engine::ParallelOptions& parallel :
       {engine::ParallelOptions{}, {.tensor = 2}, {.pipeline = 2}, {.shard = 2, .zero = 1}}) {
    Options options = OptionsOf(kMaskedBert);
    options.model_config["vocab_size"] = 331;
    options.parallel = parallel;
    ExpectPlannedTraffic(options, 2);
  }
}

/// Whole blocks, so that a stage trains nothing; a tied embedding and some of each block; almost everything.
TEST_F(LayoutTrafficTest, OfFrozenParametersHasNoGradients) {
  const std::vector<std::pair<int, std::vector<std::string>>> frozen = {
      {kLlama, {"*embed*", "*.0.*", "*.1.*", "*.2.mlp.*"}},
      {kGpt2, {"*wte*", "*attn*"}},
      {kGpt2, {"*wpe*", "*.1.ln_*"}},
      {kBert, {"*attention.self*", "*.dense.*", "*word_embeddings*"}}};
  for (const auto& [family, freeze] : frozen) {
    for (const engine::ParallelOptions& parallel : {engine::ParallelOptions{},
                                                    {.pipeline = 2, .schedule = PipelineSchedule::kZeroBubble},
                                                    {.pipeline = 2, .zero = 1},
                                                    {.pipeline = 2, .zero = 3},
                                                    {.shard = 2, .tensor = 2, .sequence = true, .zero = 2},
                                                    {.shard = 2, .zero = 3, .reshard = false}}) {
      Options options = OptionsOf(family);
      options.model_config["vocab_size"] = 331;
      options.freeze = freeze;
      options.parallel = parallel;
      SCOPED_TRACE(fmt::format("family {} freeze {} pipeline {} tensor {} zero {}", family, freeze.front(),
                               parallel.pipeline, parallel.tensor, parallel.zero));
      ExpectPlannedTraffic(options, 4);
    }
  }
}

TEST_F(LayoutTrafficTest, OfAdaptersIsWhatThePlannerSays) {
  const engine::LoraOptions all{.rank = 4}, of_qwen3{.rank = 4, .targets = {"v_proj", "o_proj", "down_proj"}};
  const engine::LoraOptions of_gptj{.rank = 4, .dropout = 0.1, .targets = {"v_proj", "fc_in"}};
  const engine::LoraOptions dora{.rank = 4, .dropout = 0.1, .dora = true};
  for (const auto& [family, lora] : {std::pair(kLlama, all), std::pair(kQwen3, of_qwen3), std::pair(kGpt2, all),
                                     std::pair(kGptJ, of_gptj), std::pair(kLlama, dora)}) {
    for (const engine::ParallelOptions& parallel :
         {engine::ParallelOptions{},
          {.pipeline = 2, .schedule = PipelineSchedule::kZeroBubble},
          {.pipeline = 2, .zero = 1},
          {.tensor = 2, .pipeline = 2},
          {.tensor = 4, .sequence = true, .recompute = Recompute::kSelective},
          {.shard = 2, .tensor = 2, .sequence = true, .zero = 2, .recompute = Recompute::kFull},
          {.shard = 2, .zero = 3, .reshard = false}}) {
      Options options = OptionsOf(family);
      options.model_config["vocab_size"] = 331;
      options.lora = lora;
      options.parallel = parallel;
      SCOPED_TRACE(fmt::format("family {} pipeline {} tensor {} zero {}", static_cast<int>(family), parallel.pipeline,
                               parallel.tensor, parallel.zero));
      ExpectPlannedTraffic(options, 4);
    }
  }
}

}  // namespace
}  // namespace millrace::train
