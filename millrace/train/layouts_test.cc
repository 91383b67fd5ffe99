// Every way to divide a run among ranks learns what one rank learns, and any goes on from the checkpoint of any other.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <set>

#include "millrace/base/hash/random.h"
#include "millrace/engine/config/families.h"
#include "millrace/engine/parallel/testing/counting.h"
#include "millrace/engine/parameters/scalar_types.h"
#include "millrace/plan/search.h"
#include "millrace/plan/traffic.h"
#include "millrace/train/testing/train_runs.h"

namespace millrace::train {
namespace {

using engine::PipelineSchedule;
using engine::Recompute;

/// The families that the layouts divide. kBert learns masked tokens and next sentences; kMaskedBert, which is not among
/// the pairs, masked tokens alone.
enum Family { kLlama, kQwen3, kGpt2, kGptJ, kBert, kFamilies, kMaskedBert = kFamilies };

/// A layout by its choices. Two layouts that differ in one choice differ in one number.
struct Choices {
  enum Axis {
    kFamily,
    kTensor,
    kSequence,
    kPipeline,
    kSchedule,
    kData,
    kShard,
    kZero,
    kRecompute,
    kMicroBatch,
    kPrecision,
    kAxes
  };
  std::array<int, kAxes> at{};
  int operator[](Axis axis) const { return at[axis]; }

  bool bf16() const { return at[kPrecision] == 1; }
  int ranks() const { return at[kTensor] * at[kPipeline] * at[kData]; }
  engine::ParallelOptions Parallel() const {
    return {.data = at[kData],
            .shard = at[kShard],
            .tensor = at[kTensor],
            .sequence = at[kSequence] == 1,
            .pipeline = at[kPipeline],
            .schedule = static_cast<PipelineSchedule>(at[kSchedule]),
            .virtual_stages = at[kSchedule] == static_cast<int>(PipelineSchedule::kInterleaved) ? 2 : 1,
            .zero = at[kZero],
            .reshard = (at[kData] + at[kPipeline]) % 2 == 0,
            .recompute = static_cast<Recompute>(std::min(at[kRecompute], 2)),
            .recompute_every = at[kRecompute] == 3 ? 2 : 1};
  }
  bool IsValid() const {
    const bool interleaved = at[kSchedule] == static_cast<int>(PipelineSchedule::kInterleaved);
    return ranks() <= 8 && at[kData] % at[kShard] == 0 && (at[kShard] > 1) == (at[kZero] > 0) &&
           (at[kTensor] > 1 || at[kSequence] == 0) &&
           (at[kPipeline] > 1 || at[kSchedule] == static_cast<int>(PipelineSchedule::k1F1B)) &&
           (!interleaved || at[kPipeline] == 2);  // the models have four blocks
  }
  std::string ToText() const {
    static constexpr const char* kNames[] = {"family", "tensor", "sequence",  "pipeline",    "schedule", "data",
                                             "shard",  "zero",   "recompute", "micro_batch", "bf16"};
    std::string text;
    for (std::size_t axis = 0; axis < kAxes; ++axis) text += fmt::format("{} {} ", kNames[axis], at[axis]);
    return text;
  }
};

const std::vector<std::vector<int>>& Values() {
  static const std::vector<std::vector<int>> kValues = {{kLlama, kQwen3, kGpt2, kGptJ, kBert},
                                                        {1, 2},
                                                        {0, 1},
                                                        {1, 2, 4},
                                                        {0, 1, 2, 3},
                                                        {1, 2, 4},
                                                        {1, 2, 4},
                                                        {0, 1, 2, 3},
                                                        {0, 1, 2, 3},
                                                        {1, 2},
                                                        {0, 1}};
  return kValues;
}

std::vector<Choices> AllLayouts() {
  std::vector<Choices> all{{}};
  for (std::size_t axis = 0; axis < Choices::kAxes; ++axis) {
    std::vector<Choices> longer;
    for (Choices choices : all) {
      for (const int value : Values()[axis]) {
        choices.at[axis] = value;
        longer.push_back(choices);
      }
    }
    all = std::move(longer);
  }
  std::erase_if(all, [](const Choices& choices) { return !choices.IsValid(); });
  return all;
}

/// Returns few layouts that have every pair of choices that some layout has.
std::vector<Choices> PairwiseLayouts() {
  using Pair = std::array<int, 4>;
  const auto pairs_of = [](const Choices& choices) {
    std::vector<Pair> pairs;
    for (int a = 0; a < Choices::kAxes; ++a) {
      for (int b = a + 1; b < Choices::kAxes; ++b) pairs.push_back({a, choices.at[a], b, choices.at[b]});
    }
    return pairs;
  };
  std::vector<Choices> all = AllLayouts(), chosen;
  std::ranges::stable_sort(all, {}, &Choices::ranks);  // of equals, the cheapest is taken
  std::set<Pair> missing;
  for (const Choices& choices : all) {
    for (const Pair& pair : pairs_of(choices)) missing.insert(pair);
  }
  while (!missing.empty()) {
    const auto gain = [&](const Choices& choices) {
      return std::ranges::count_if(pairs_of(choices), [&](const Pair& pair) { return missing.contains(pair); });
    };
    const Choices best = *std::ranges::max_element(all, {}, gain);
    for (const Pair& pair : pairs_of(best)) missing.erase(pair);
    chosen.push_back(best);
  }
  return chosen;
}

class LayoutsTest : public TrainTest {
 protected:
  static constexpr std::uint64_t kSteps = 20;
  /// A layout sums in another order, so bfloat16 rounds some values the other way: by 2^-9 of a value.
  /// The mean over the 256 tokens of a step averages the roundings of their losses: 2^-9 / √256. The largest difference
  /// measured is 2^-14.5; one rank's own bfloat16 differs from its float32 by up to 2^-11.5.
  static constexpr double kBf16Losses = 0x1p-13;
  /// Weights that begin at zero are sums of updates, which differ by some roundings of gradients: four of 2^-9. The
  /// largest difference measured is 2^-8.
  static constexpr double kBf16Weights = 0x1p-7;
  /// BERT predicts 40 tokens in a step, not 256: fewer roundings average out. The largest difference measured is
  /// 2^-6.3.
  static constexpr double kBf16BertWeights = 0x1p-5;

  using Model = std::pair<int, bool>;  ///< family, and whether in bfloat16

  LayoutsTest() {
    EXPECT_TRUE(WriteFileAtomic(folder_->path() / "vocab.txt", AsBytes(kVocabulary)));
    std::filesystem::create_directories(folder_->path() / "sentences");
    EXPECT_TRUE(WriteFileAtomic(folder_->path() / "sentences/sentences.jsonl", AsBytes(Sentences())));
  }

  static constexpr std::string_view kVocabulary =
      "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n.\nthe\nmill\nrace\nturns\nwater\nwheel\nstone\ngrain\nflour\nbread\n";
  /// The planner takes BERT to predict 0.15 of the tokens: of a row of 32 tokens, 5.
  static constexpr std::uint32_t kPredictedInRow = 5;

  /// Texts for BERT: each fits in a row, and each of its sentences has more than kPredictedInRow tokens.
  static std::string Sentences() {
    constexpr std::array kWords = {"the",   "mill",  "race",  "turns", "water",
                                   "wheel", "stone", "grain", "flour", "bread"};
    Random random(5);
    std::string lines;
    for (int i = 0; i < 200; ++i) {
      std::string text;
      std::uint64_t word = random.Below(10);
      for (int j = 0; j < 24; ++j) {
        text += std::string(kWords[word]) + (j % 6 == 5 ? ". " : " ");
        word = (word * 3 + random.Below(2)) % 10;
      }
      lines += DumpJson({{"text", text}}) + "\n";
    }
    return lines;
  }

  Options OptionsOf(int family, int micro_batch = 2, bool bf16 = false) const {
    Options options = Tiny("layouts");
    if (bf16) options.precision = at::kBFloat16;
    options.steps = kSteps;
    options.micro_batch = micro_batch;
    options.checkpoint_every = 100;  // at the end, and where a run stops
    options.schedule = {.lr = 1e-3, .min_lr = 1e-4, .warmup_steps = 3};
    // Large enough that gradients which are zero by mathematics, as of key biases, do not become steps of ±lr.
    options.optimizer.method = engine::AdamwOptions{.eps = 1e-5};
    switch (family) {
      case kLlama:
        options.model_config.update({{"num_hidden_layers", 4}});
        break;
      case kQwen3:
        options.model_config = {{"model_type", "qwen3"},
                                {"hidden_size", 32},
                                {"intermediate_size", 48},
                                {"num_hidden_layers", 4},
                                {"num_attention_heads", 4},
                                {"num_key_value_heads", 2},
                                {"head_dim", 8},
                                {"max_position_embeddings", 32},
                                {"tie_word_embeddings", true}};
        break;
      case kBert:
      case kMaskedBert:
        options.model_config = {{"model_type", "bert"},   {"hidden_size", 32},        {"intermediate_size", 48},
                                {"num_hidden_layers", 4}, {"num_attention_heads", 4}, {"max_position_embeddings", 32}};
        engine::SetHeads(options.model_config, {.tokens = true, .rows = family == kBert}, 2);
        options.tokenizer_url = (folder_->path() / "vocab.txt").native();
        options.data.sources = {{.url = (folder_->path() / "sentences/").native()}};
        options.data.objective = data::Objective::kMlm;
        options.data.mlm = {.probability = 0.3,
                            .max_predictions = kPredictedInRow,
                            .next_sentence = family == kBert,
                            .short_sequences = 0};
        break;
      default:
        options.model_config = {{"model_type", family == kGpt2 ? "gpt2" : "gptj"},
                                {"n_embd", 32},
                                {"n_layer", 4},
                                {"n_head", 4},
                                {"n_positions", 32},
                                {"rotary_dim", 4},
                                {"embd_pdrop", 0.1},
                                {"attn_pdrop", 0.1},
                                {"resid_pdrop", 0.1}};
    }
    return options;
  }
  Options OptionsOf(const Choices& choices) const {
    Options options = OptionsOf(choices[Choices::kFamily], choices[Choices::kMicroBatch], choices.bf16());
    options.parallel = choices.Parallel();
    return options;
  }

  /// Expects the weights in the last checkpoints of two runs to be the same but for rounding. In bfloat16 these are the
  /// float32 master copies.
  void ExpectSameWeights(const std::string& url, const std::string& other, const Model& model,
                         const std::string& what) {
    const auto [family, bf16] = model;
    const double bf16_tolerance = family == kBert ? kBf16BertWeights : kBf16Weights;
    const auto left = Tensors(url, kSteps), right = Tensors(other, kSteps);
    ASSERT_EQ(left.size(), right.size());
    std::size_t compared = 0;
    for (const auto& [name, bytes] : left) {
      if (!name.starts_with(bf16 ? "optimizer/master/" : "model/")) continue;
      ++compared;
      const auto tensor = [](const std::string& raw) {
        return at::from_blob(const_cast<char*>(raw.data()), {static_cast<std::int64_t>(raw.size() / 4)}, at::kFloat);
      };
      const double norm = tensor(right.at(name)).norm().item<double>();
      EXPECT_LE((tensor(bytes) - tensor(right.at(name))).norm().item<double>(),
                (bf16 ? bf16_tolerance : 1e-5) * std::max(norm, 1e-2))
          << what << name;
    }
    EXPECT_GT(compared, 10U);
  }
};

TEST_F(LayoutsTest, LearnWhatOneRankLearns) {
  std::map<Model, Ran> one;
  const auto transposed_of = [&](const std::string& url) -> Json {
    auto connection = object::OpenConnection({}).value();
    const Json meta = checkpoint::Reader::Open(*connection, url, kSteps).value()->manifest().meta;
    const Json* names = JsonFind(meta, checkpoint::kMetaTransposed);
    return names == nullptr ? Json() : *names;
  };
  const auto url_of = [&](const Model& model) {
    return CheckpointUrl(fmt::format("one {}{}", model.first, model.second ? " bf16" : ""));
  };
  for (int i = 0; i < 2 * kFamilies; ++i) {
    const Model model{i / 2, i % 2 == 1};
    Options options = OptionsOf(model.first, 2, model.second);
    options.checkpoint_url = url_of(model);
    Ran& ran = one[model] = Run(options);
    ASSERT_TRUE(ran.outcome) << ran.outcome.error().ToString();
    EXPECT_LT(ran.losses.at(kSteps), ran.losses.at(1));
  }
  const std::vector<Choices> layouts = PairwiseLayouts();
  Random random(17);
  for (std::size_t i = 0; i < layouts.size(); ++i) {
    const Choices& choices = layouts[i];
    const std::string what = choices.ToText();
    SCOPED_TRACE(what);
    const Model model{choices[Choices::kFamily], choices.bf16()};
    const std::map<std::uint64_t, double>& want = one[model].losses;
    const double tolerance = choices.bf16() ? kBf16Losses : 2e-6;
    Options options = OptionsOf(choices);
    options.checkpoint_url = CheckpointUrl(what);
    const Ran whole = RunRanks(options, choices.ranks());
    ASSERT_TRUE(whole.outcome) << whole.outcome.error().ToString();
    ASSERT_EQ(whole.losses.size(), kSteps);
    for (const auto& [step, loss] : whole.losses) EXPECT_NEAR(loss, want.at(step), tolerance * loss) << "step " << step;
    ExpectSameWeights(options.checkpoint_url, url_of(model), model, what);
    EXPECT_EQ(transposed_of(options.checkpoint_url), transposed_of(url_of(model)));

    // Stopped at some step, it goes on to the same bits in the same layout.
    options.checkpoint_url = CheckpointUrl(what + "stopped");
    ASSERT_TRUE(RunRanks(options, choices.ranks(), 1 + random.Below(kSteps - 2)).outcome);
    const Ran rest = RunRanks(options, choices.ranks());
    ASSERT_TRUE(rest.outcome) << rest.outcome.error().ToString();
    EXPECT_LT(rest.losses.size(), kSteps);
    for (const auto& [step, loss] : rest.losses) EXPECT_EQ(loss, whole.losses.at(step)) << "step " << step;
    EXPECT_EQ(Tensors(options.checkpoint_url, kSteps), Tensors(CheckpointUrl(what), kSteps));
  }
}

/// Operations and bytes, by group and kind.
using Exchanged = std::map<std::pair<std::string, engine::Traffic::Kind>, std::array<std::int64_t, 2>>;

Exchanged ExchangedIn(const engine::GroupTraffic& groups) {
  Exchanged exchanged;
  for (const auto& [name, traffic] : groups) {
    for (int i = 0; i < engine::Traffic::kKinds; ++i) {
      const auto kind = static_cast<engine::Traffic::Kind>(i);
      const std::array counts{static_cast<std::int64_t>(traffic.operations(kind)),
                              static_cast<std::int64_t>(traffic.bytes(kind))};
      if (counts[0] > 0) exchanged[{name, kind}] = counts;
    }
  }
  return exchanged;
}

/// The run as the planner sees it, on one machine.
plan::TrainingSetup SetupOf(const Options& options, int ranks) {
  plan::TrainingSetup setup{.model = engine::ParseModelConfig(options.model_config, "config.json").value()->Shape(),
                            .ranks = ranks,
                            .ranks_per_machine = ranks,
                            .global_batch = options.global_batch,
                            .micro_batch = options.micro_batch,
                            .sequence_length = options.data.sequence_length,
                            .bf16 = options.precision == at::kBFloat16};
  setup.model.Freeze(options.freeze);
  if (options.lora) setup.model.Adapt(*options.lora);
  return setup;
}

/// What the planner says of a rank of the pipeline, of those the first shard and the first tensor rank. `purpose`: of
/// these exchanges alone; of pairs of answers, if it is that of their reference.
Exchanged PlannedFor(const Options& options, int ranks, std::size_t pipeline_rank, std::string_view purpose = {}) {
  static const std::map<std::string_view, std::string> kGroups = {
      {"all", ""},          {"data", "replica"},      {"ends", "tied"},   {"shard", "shard"}, {"replica", "replica"},
      {"tensor", "tensor"}, {"pipeline", "pipeline"}, {"stage", "stage"}, {"model", "model"}};
  static const std::map<plan::ExchangeKind, engine::Traffic::Kind> kKinds = {
      {plan::ExchangeKind::kAllReduce, engine::Traffic::kAllReduce},
      {plan::ExchangeKind::kAllGather, engine::Traffic::kAllGather},
      {plan::ExchangeKind::kReduceScatter, engine::Traffic::kReduceScatter},
      {plan::ExchangeKind::kSend, engine::Traffic::kSend},
      {plan::ExchangeKind::kReceive, engine::Traffic::kReceive}};
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
    std::vector<engine::GroupTraffic> traffic(static_cast<std::size_t>(ranks));
    wrap_ = [&](int rank, std::unique_ptr<engine::Collective> world) {
      return engine::MakeCountingByGroup(std::move(world), traffic[static_cast<std::size_t>(rank)]);
    };
    options.steps = steps;
    const Ran ran = RunRanks(options, ranks);
    EXPECT_TRUE(ran.outcome) << ran.outcome.error().ToString();
    std::vector<Exchanged> exchanged;
    for (const engine::GroupTraffic& each : traffic) exchanged.push_back(ExchangedIn(each));
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
      const auto gathers = std::pair("tensor", engine::Traffic::kAllGather);
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
    options.eval_sources = options.data.sources;
    options.eval_samples = kSamples;
    const auto step_of = [&](std::uint64_t eval_every) {
      options.eval_every = eval_every;
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
      planned[{"", engine::Traffic::kAllReduce}] = {1, 72};  // the evaluation's sums
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

TEST_F(LayoutsTest, GoOnFromEachOthersCheckpoints) {
  std::vector<Choices> layouts = PairwiseLayouts();
  Random random(23);
  for (const auto& [family, bf16] : {Model{kLlama, false}, Model{kLlama, true}, Model{kQwen3, false},
                                     Model{kGpt2, false}, Model{kGptJ, false}, Model{kBert, false}}) {
    std::vector<Choices> mine;
    for (Choices choices : layouts) {
      choices.at[Choices::kFamily] = family;
      choices.at[Choices::kPrecision] = bf16 ? 1 : 0;
      mine.push_back(choices);
    }
    const double tolerance = bf16 ? kBf16Losses : 4e-6;
    const Ran one = Run(OptionsOf(family, 2, bf16));
    ASSERT_TRUE(one.outcome) << one.outcome.error().ToString();
    // One run that changes its layout every few steps.
    const std::string url = CheckpointUrl(fmt::format("changing {}{}", family, bf16 ? " bf16" : ""));
    std::string what;
    std::uint64_t done = 0;
    while (done < kSteps) {
      const Choices& choices = mine[random.Below(mine.size())];
      what += fmt::format("from step {}: {}\n", done, choices.ToText());
      SCOPED_TRACE(what);
      Options options = OptionsOf(choices);
      options.checkpoint_url = url;
      options.steps_this_run = 3;
      const Ran part = RunRanks(options, choices.ranks());
      ASSERT_TRUE(part.outcome) << part.outcome.error().ToString();
      for (const auto& [step, loss] : part.losses) EXPECT_NEAR(loss, one.losses.at(step), tolerance * loss) << step;
      ASSERT_GT(part.outcome->step, done);
      done = part.outcome->step;
    }
  }
}

/// Four tensor ranks share two key-value heads. A run goes from them to other layouts and back.
TEST_F(LayoutsTest, ShareKeyValueHeads) {
  for (const bool lamb : {false, true}) {
    const auto options_of = [&](const engine::ParallelOptions& parallel) {
      Options options = OptionsOf(kQwen3);
      if (lamb) options.optimizer.method = engine::LambOptions{.eps = 1e-5};
      options.parallel = parallel;
      return options;
    };
    const std::string one_url = CheckpointUrl(fmt::format("one {}", lamb));
    Options alone = options_of({});
    alone.checkpoint_url = one_url;
    const Ran one = Run(alone);
    ASSERT_TRUE(one.outcome) << one.outcome.error().ToString();
    struct Part {
      int ranks;
      engine::ParallelOptions parallel;
    };
    const std::vector<Part> parts = {{4, {.tensor = 4}},
                                     {8, {.data = 2, .shard = 2, .tensor = 4, .sequence = true, .zero = 3}},
                                     {2, {.tensor = 2}},
                                     {8, {.data = 2, .shard = 2, .tensor = 4, .zero = 1}},
                                     {8, {.tensor = 4, .pipeline = 2}},
                                     {1, {}},
                                     {4, {.tensor = 4, .sequence = true}}};
    const std::string url = CheckpointUrl(fmt::format("shared {}", lamb));
    std::uint64_t done = 0;
    for (const Part& part : parts) {
      SCOPED_TRACE(fmt::format("lamb {}, from step {} on {} ranks", lamb, done, part.ranks));
      Options options = options_of(part.parallel);
      options.checkpoint_url = url;
      options.steps_this_run = 3;
      const Ran ran = RunRanks(options, part.ranks);
      ASSERT_TRUE(ran.outcome) << ran.outcome.error().ToString();
      for (const auto& [step, loss] : ran.losses) EXPECT_NEAR(loss, one.losses.at(step), 2e-6 * loss) << step;
      ASSERT_GT(ran.outcome->step, done);
      done = ran.outcome->step;
    }
    ASSERT_EQ(done, kSteps);
    ExpectSameWeights(url, one_url, {kQwen3, false}, "shared heads: ");
  }
}

TEST_F(LayoutsTest, Bf16ReductionIsClose) {
  for (const engine::ParallelOptions& parallel :
       {engine::ParallelOptions{}, {.zero = 1}, {.zero = 2}, {.zero = 3}, {.shard = 2, .zero = 2}, {.tensor = 2}}) {
    Options options = OptionsOf(kLlama);
    options.parallel = parallel;
    const std::string what =
        fmt::format("reduce zero {} shard {} tensor {}", parallel.zero, parallel.shard, parallel.tensor);
    SCOPED_TRACE(what);
    const Ran exact = RunRanks(options, 4);
    ASSERT_TRUE(exact.outcome) << exact.outcome.error().ToString();
    options.parallel.reduce_in_bf16 = true;
    options.checkpoint_url = CheckpointUrl(what);
    const Ran close = RunRanks(options, 4);
    ASSERT_TRUE(close.outcome) << close.outcome.error().ToString();
    for (const auto& [step, loss] : close.losses) EXPECT_NEAR(loss, exact.losses.at(step), 2e-3 * loss) << step;
    EXPECT_NE(close.losses, exact.losses);

    options.checkpoint_url = CheckpointUrl(what + "stopped");
    ASSERT_TRUE(RunRanks(options, 4, 7).outcome);
    const Ran rest = RunRanks(options, 4);
    ASSERT_TRUE(rest.outcome) << rest.outcome.error().ToString();
    EXPECT_LT(rest.losses.size(), kSteps);
    for (const auto& [step, loss] : rest.losses) EXPECT_EQ(loss, close.losses.at(step)) << step;
    EXPECT_EQ(Tensors(options.checkpoint_url, kSteps), Tensors(CheckpointUrl(what), kSteps));
  }
}

TEST_F(LayoutsTest, OverlapChangesNoBits) {
  for (const engine::ParallelOptions& parallel :
       {engine::ParallelOptions{}, {.zero = 1}, {.shard = 2, .zero = 1}, {.pipeline = 2}}) {
    Options options = OptionsOf(kLlama);
    options.steps = 4;
    options.parallel = parallel;
    const Ran beside = RunRanks(options, 4);
    ASSERT_TRUE(beside.outcome) << beside.outcome.error().ToString();
    options.parallel.overlap = false;
    const Ran behind = RunRanks(options, 4);
    ASSERT_TRUE(behind.outcome) << behind.outcome.error().ToString();
    EXPECT_EQ(behind.losses, beside.losses);
  }
}

TEST_F(LayoutsTest, LayoutsThatThePlannerChoosesLearnTheSame) {
  constexpr int kRanks = 4;
  Options options = OptionsOf(kLlama);
  options.model_config["vocab_size"] = 300;
  const Ran one = Run(options);
  ASSERT_TRUE(one.outcome) << one.outcome.error().ToString();
  options.machine = "p4d.24xlarge";  // its links are fast, so that many layouts are worth their exchanges
  options.setup.ranks_per_machine = kRanks;
  const plan::TrainingSetup setup = SetupOf(options, kRanks);
  const plan::Machine machine = plan::Machine::Find(options.machine).value();
  std::vector<engine::ParallelOptions> chosen;
  for (const double memory_weight : {0.0, 1.0}) {
    options.auto_memory_weight = memory_weight;
    const Ran ran = RunRanks(options, kRanks);
    ASSERT_TRUE(ran.outcome) << ran.outcome.error().ToString();
    ASSERT_EQ(ran.losses.size(), kSteps);
    for (const auto& [step, loss] : ran.losses) EXPECT_NEAR(loss, one.losses.at(step), 2e-6 * loss) << "step " << step;
    chosen.push_back(plan::ChooseLayout(setup, machine, {.memory_weight = memory_weight})->options);
    EXPECT_EQ(ran.plan.parallel, chosen.back());
  }
  EXPECT_NE(chosen[0], chosen[1]) << "the fastest layout needs more than the least memory";
}

TEST_F(LayoutsTest, PlacementsLearnTheSame) {
  const Ran one = Run(OptionsOf(kLlama, 1));
  ASSERT_TRUE(one.outcome) << one.outcome.error().ToString();
  for (const char* placement : {"cluster", "spread", "DTP", "PDT"}) {
    SCOPED_TRACE(placement);
    Options options = OptionsOf(kLlama, 1);
    options.parallel = {.data = 2, .shard = 2, .tensor = 2, .pipeline = 2, .zero = 2, .placement = placement};
    const Ran ran = RunRanks(options, 8);
    ASSERT_TRUE(ran.outcome) << ran.outcome.error().ToString();
    ASSERT_EQ(ran.losses.size(), kSteps);
    for (const auto& [step, loss] : ran.losses) EXPECT_NEAR(loss, one.losses.at(step), 2e-6 * loss) << "step " << step;
  }
}

TEST_F(LayoutsTest, AreRefusedWithTheArithmetic) {
  struct Refusal {
    int ranks;
    engine::ParallelOptions parallel;
    std::string text;
  };
  for (const Refusal& refusal :
       {Refusal{4, {.tensor = 3}, "4 ranks are not a multiple of train.parallel.tensor 3"},
        Refusal{3, {.tensor = 3}, "4 attention heads do not divide among 3"},
        Refusal{4, {.pipeline = 3}, "not a multiple of train.parallel.pipeline 3"},
        Refusal{8, {.pipeline = 8}, "4 blocks, fewer than the 8 stages"},
        Refusal{4, {.data = 4, .tensor = 2}, "train.parallel.data is 4, but 4 ranks / (tensor 2 × pipeline 1) are 2"},
        Refusal{4, {.shard = 3, .zero = 1}, "4 data-parallel ranks are not a multiple of train.parallel.shard 3"},
        Refusal{2, {.shard = 2}, "zero 0 divides nothing"},
        Refusal{2, {.zero = 3, .overlap = false}, "train.parallel.overlap is false, but zero 3"},
        Refusal{2, {.pipeline = 2, .virtual_stages = 2}, "schedule interleaved takes 2 or more"},
        Refusal{2, {.placement = "DDT"}, "DDT"}}) {
    Options options = OptionsOf(kLlama);
    options.parallel = refusal.parallel;
    const Ran ran = RunRanks(options, refusal.ranks);
    ASSERT_FALSE(ran.outcome) << refusal.text;
    EXPECT_THAT(ran.outcome.error().ToString(), testing::HasSubstr(refusal.text));
  }
}

}  // namespace
}  // namespace millrace::train
