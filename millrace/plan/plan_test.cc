#include "millrace/plan/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "millrace/base/hash/random.h"
#include "millrace/engine/config/families.h"
#include "millrace/plan/sharded_passes.h"
#include "millrace/plan/testing_setups.h"

namespace millrace::plan {
namespace {

using engine::ParallelOptions, engine::PipelineSchedule, engine::Recompute;
using ::testing::HasSubstr;

TrainingSetup SetupOf8B(int ranks) {
  return {.model = Llama8B(),
          .ranks = ranks,
          .ranks_per_machine = 8,
          .global_batch = 64,
          .sequence_length = 4096,
          .bf16 = true};
}
Plan PlanOf(const TrainingSetup& setup, const ParallelOptions& options) {
  return MakePlan(setup, options, Machine::Find("p5en.48xlarge").value()).value();
}
std::int64_t Of(const Plan& plan, MemoryKind kind) { return plan.memory[plan.fullest][kind]; }

/// Rajbhandari et al. 2019, figure 1: 16 bytes a parameter in all. Gradients are float32 here, so 18.
TEST(Memory, ShardingDividesWhatItSays) {
  const TrainingSetup setup = SetupOf8B(8);
  const auto elements = static_cast<double>(setup.model.ParameterCount());
  for (int zero = 0; zero <= 3; ++zero) {
    const Plan plan = PlanOf(setup, {.zero = zero});
    const auto near = [&](MemoryKind kind, double bytes, int from) {
      const double all = elements * bytes;
      EXPECT_NEAR(static_cast<double>(Of(plan, kind)), zero >= from ? all / 8 : all, 1e-3 * all)
          << MemoryKindName(kind) << " with zero " << zero;
    };
    near(MemoryKind::kOptimizer, 8, 1);
    near(MemoryKind::kMaster, 4, 1);
    near(MemoryKind::kGradients, 4, 2);
    near(MemoryKind::kWeights, 2, 3);
  }
  const Plan hybrid = PlanOf(SetupOf8B(16), {.shard = 8, .zero = 3});
  EXPECT_EQ(Of(hybrid, MemoryKind::kWeights), Of(PlanOf(setup, {.zero = 3}), MemoryKind::kWeights));
}

TEST(Memory, StateOnTheHostTakesTheBus) {
  TrainingSetup setup = SetupOf8B(8);
  const auto elements = static_cast<double>(setup.model.ParameterCount());
  const Machine machine = Machine::Find("p5en.48xlarge").value();
  const Plan there = PlanOf(setup, {.zero = 1});
  setup.offloads_state = true;
  const Plan away = PlanOf(setup, {.zero = 1});
  EXPECT_EQ(Of(away, MemoryKind::kOptimizer), 0);
  EXPECT_EQ(Of(away, MemoryKind::kMaster), 0);
  EXPECT_EQ(there.memory[there.fullest].total() - away.memory[away.fullest].total(),
            Of(there, MemoryKind::kOptimizer) + Of(there, MemoryKind::kMaster));
  // Moments and master copy of an element are 12 bytes in each direction; gradients have their norm taken before.
  const double norm = 4 * elements / machine.memory_bandwidth;
  EXPECT_NEAR(away.time.optimizer, 12 * elements / 8 / machine.host_bandwidth + norm, 1e-3 * away.time.optimizer);
}

TEST(Memory, InputsOfBlocksCanWaitOnTheHost) {
  const TrainingSetup setup = SetupOf8B(8);
  engine::ParallelOptions options{.zero = 1, .recompute = engine::Recompute::kFull};
  const Plan there = PlanOf(setup, options);
  options.offload_activations = true;
  const Plan away = PlanOf(setup, options);
  // Without, the inputs of all 32 blocks are there; with, those of three.
  const double left = static_cast<double>(Of(away, MemoryKind::kActivations)) /
                      static_cast<double>(Of(there, MemoryKind::kActivations));
  EXPECT_LT(left, 4.0 / 32);
  EXPECT_EQ(Of(away, MemoryKind::kWorking), Of(there, MemoryKind::kWorking));
  EXPECT_EQ(away.time.total(), there.time.total());  // the bus is fast enough for this machine's passes
}

TEST(Memory, StateInBfloat16TakesHalf) {
  TrainingSetup setup = SetupOf8B(8);
  const auto elements = setup.model.ParameterCount();
  const Plan wide = PlanOf(setup, {.zero = 1});
  setup.moment_bytes = 2;
  const Plan moments = PlanOf(setup, {.zero = 1});
  setup.rounds_weights = true;
  const Plan least = PlanOf(setup, {.zero = 1});
  EXPECT_EQ(2 * Of(moments, MemoryKind::kOptimizer), Of(wide, MemoryKind::kOptimizer));
  EXPECT_EQ(Of(moments, MemoryKind::kMaster), Of(wide, MemoryKind::kMaster));
  EXPECT_EQ(Of(least, MemoryKind::kMaster), 0);
  EXPECT_EQ(Of(least, MemoryKind::kOptimizer), Of(moments, MemoryKind::kOptimizer));
  EXPECT_EQ(wide.memory[wide.fullest].total() - least.memory[least.fullest].total(), elements * 8 / 8);
  // Bytes of an element in a step of AdamW: 34, then 26, then 20; and the norm's 4 of 8 times as many elements.
  const double norm = 4 * 8;
  EXPECT_NEAR(moments.time.optimizer / wide.time.optimizer, (26 + norm) / (34 + norm), 1e-3);
  EXPECT_NEAR(least.time.optimizer / wide.time.optimizer, (20 + norm) / (34 + norm), 1e-3);
}

/// The stages of a layout have all elements of the model between them, but for the gaps between parameters and for a
/// second copy of a tied table.
TEST(Memory, StagesHaveTheWholeModel) {
  TrainingSetup setup = SetupOf8B(8);
  for (const int pipeline : {1, 2, 4, 8}) {
    for (const int stages : {1, 2}) {
      if (pipeline * stages == 2 && stages == 2) continue;
      const ParallelOptions options{.pipeline = pipeline,
                                    .schedule = stages > 1 ? PipelineSchedule::kInterleaved : PipelineSchedule::k1F1B,
                                    .virtual_stages = stages};
      const Layout layout = MakeLayout(setup, options).value();
      const LayoutCost cost = CostOfLayout(setup, options, nullptr);
      std::int64_t elements = 0, blocks = 0;
      for (const RankShare& share : SharesOf(setup, layout, cost)) {
        elements += share.elements;
        blocks += share.blocks;
      }
      EXPECT_EQ(elements, setup.model.ParameterCount());
      EXPECT_EQ(blocks, 32);
    }
  }
}

TEST(Memory, SchedulesKeepWhatTheyPromise) {
  const TrainingSetup setup = SetupOf8B(4);
  const auto in_flight = [&](PipelineSchedule schedule, int stages, int rank) {
    const Layout layout = MakeLayout(setup, {.pipeline = 4, .schedule = schedule, .virtual_stages = stages}).value();
    return MicrobatchesInFlight(layout, rank);
  };
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(in_flight(PipelineSchedule::kSimple, 1, rank), 64);
    EXPECT_EQ(in_flight(PipelineSchedule::k1F1B, 1, rank), 4 - rank);
    EXPECT_EQ(in_flight(PipelineSchedule::kZeroBubble, 1, rank), 4 - rank);
  }
  // Narayanan et al. 2021: 1 + (p - 1)/(p·v) times the memory of 1F1B on the first rank, p = 4, v = 2.
  EXPECT_DOUBLE_EQ(in_flight(PipelineSchedule::kInterleaved, 2, 0), 4 * (1 + 3.0 / 8));
}

/// Korthikanti et al. 2022: with tensor and sequence parallelism all activations of a block are divided by the ranks,
/// but for the gathered inputs of divided layers, which this engine keeps.
TEST(Memory, RecomputationAndSequencesSaveActivations) {
  const TrainingSetup setup = SetupOf8B(8);
  const auto kept = [&](ParallelOptions options) { return Of(PlanOf(setup, options), MemoryKind::kActivations); };
  EXPECT_LT(kept({.tensor = 8}), kept({.tensor = 1}));
  EXPECT_LT(kept({.tensor = 8, .sequence = true}), kept({.tensor = 8}));
  EXPECT_LT(kept({.recompute = Recompute::kSelective}), kept({}));
  EXPECT_LT(kept({.recompute = Recompute::kFull}), kept({.recompute = Recompute::kSelective}) / 4);
  EXPECT_LT(kept({.recompute = Recompute::kFull}), kept({.recompute = Recompute::kFull, .recompute_every = 2}));
}

/// If only some of the attention is trained, the rest of the model costs no more memory than its weights.
TEST(Memory, FrozenParametersHaveNoState) {
  TrainingSetup setup = SetupOf8B(8);
  const Plan whole = PlanOf(setup, {});
  setup.model.Freeze({"model.embed_tokens.*", "*norm*", "*.mlp.*", "*.o_proj.*", "lm_head.*"});
  const Plan some = PlanOf(setup, {});
  const double trained = 32.0 * 4096 * (4096 + 2 * 1024);  // queries, keys and values
  EXPECT_EQ(static_cast<double>(setup.model.TrainedCount()), trained);
  EXPECT_EQ(static_cast<double>(Of(some, MemoryKind::kGradients)), 4 * trained);
  EXPECT_EQ(static_cast<double>(Of(some, MemoryKind::kOptimizer)), 8 * trained);
  EXPECT_EQ(static_cast<double>(Of(some, MemoryKind::kMaster)), 4 * trained);
  EXPECT_EQ(Of(some, MemoryKind::kWeights), Of(whole, MemoryKind::kWeights));
  EXPECT_LT(Of(some, MemoryKind::kActivations), Of(whole, MemoryKind::kActivations));
  // A frozen layer makes two products, not three. Attention itself costs the same.
  EXPECT_LT(some.time.compute, 0.8 * whole.time.compute);
  EXPECT_GT(some.time.compute, 0.65 * whole.time.compute);
  EXPECT_LT(some.time.optimizer, 0.11 * whole.time.optimizer);
  for (const TrafficLine& line : some.traffic) {
    if (line.purpose == "gradients") {
      EXPECT_EQ(static_cast<double>(line.bytes), 4 * trained);
    }
  }
}

/// Quantized matrices are no parameters: they have a place in memory, and ranks gather nothing of them.
TEST(Memory, QuantizedBlocksTakeTheirBits) {
  TrainingSetup setup = SetupOf8B(8);
  setup.model.Freeze({"*"});
  const Plan whole = PlanOf(setup, {});
  setup.model.block_bits = 4.125;
  const Plan plan = PlanOf(setup, {});
  const double matrices = 32.0 * (4096 * (2 * 4096 + 2 * 1024) + 3 * 4096 * 14336);
  EXPECT_NEAR(static_cast<double>(Of(whole, MemoryKind::kWeights) - Of(plan, MemoryKind::kWeights)),
              matrices * (2 - 4.125 / 8), 1e6);
  EXPECT_EQ(Of(plan, MemoryKind::kActivations), Of(whole, MemoryKind::kActivations));
  EXPECT_EQ(setup.model.ParameterCount(), SetupOf8B(8).model.ParameterCount());
  const Plan divided = PlanOf(setup, {.shard = 8, .zero = 3});
  const double outside = static_cast<double>(setup.model.ParameterCount()) - matrices;
  EXPECT_NEAR(static_cast<double>(Of(divided, MemoryKind::kWeights)), matrices * 4.125 / 8 + 2 * outside / 8, 1e6);
}

/// Adapters have gradients and moments, and the model under them has neither.
TEST(Memory, AdaptersAloneHaveState) {
  TrainingSetup setup = SetupOf8B(8);
  const Plan whole = PlanOf(setup, {});
  const double parameters = static_cast<double>(setup.model.ParameterCount());
  const double flops = setup.model.FlopsPerToken(0);
  setup.model.Adapt({.rank = 16});
  const double trained = 41'943'040;  // PEFT's print_trainable_parameters() for Llama 3 8B
  EXPECT_EQ(static_cast<double>(setup.model.TrainedCount()), trained);
  EXPECT_EQ(static_cast<double>(setup.model.ParameterCount()), parameters + trained);
  const Plan plan = PlanOf(setup, {});
  EXPECT_EQ(static_cast<double>(Of(plan, MemoryKind::kWeights)), 2 * (parameters + trained));
  EXPECT_EQ(static_cast<double>(Of(plan, MemoryKind::kGradients)), 4 * trained);
  EXPECT_EQ(static_cast<double>(Of(plan, MemoryKind::kOptimizer)), 8 * trained);
  EXPECT_EQ(static_cast<double>(Of(plan, MemoryKind::kMaster)), 4 * trained);
  // The base makes two of three products.
  EXPECT_NEAR(setup.model.FlopsPerToken(0), flops * 2 / 3 + 6 * trained, 1);
  EXPECT_LT(plan.time.compute, 0.85 * whole.time.compute);
  for (const TrafficLine& line : plan.traffic) {
    if (line.purpose == "gradients") EXPECT_EQ(static_cast<double>(line.bytes), 4 * trained);
  }
  setup.model.Adapt({.rank = 16, .dora = true});
  EXPECT_EQ(static_cast<double>(setup.model.TrainedCount()), trained + 32 * (2 * 4096 + 2 * 1024 + 2 * 14336 + 4096));
  setup.model.Adapt({.rank = 16, .targets = {"q_proj", "model.layers.3.self_attn.v_proj"}});
  EXPECT_EQ(setup.model.TrainedCount(), 16 * (32 * (4096 + 4096) + 4096 + 1024));
  EXPECT_EQ(setup.model.marked_blocks.size(), 2u);
}

/// Peaks of the allocator in training steps on an H200 (docs/benchmarks/gpu.md), in GiB: what a plan has but for the
/// process.
TEST(Memory, IsWhatAGpuAllocates) {
  const auto model = [](Json json) { return engine::ParseModelConfig(json, "config.json").value()->Shape(); };
  const auto gpt2 = model({{"model_type", "gpt2"},
                           {"vocab_size", 50257},
                           {"n_positions", 1024},
                           {"n_embd", 768},
                           {"n_head", 12},
                           {"n_layer", 12},
                           {"embd_pdrop", 0},
                           {"attn_pdrop", 0},
                           {"resid_pdrop", 0}});
  const auto bert = model({{"model_type", "bert"},
                           {"vocab_size", 30522},
                           {"hidden_size", 1024},
                           {"intermediate_size", 4096},
                           {"num_hidden_layers", 24},
                           {"num_attention_heads", 16},
                           {"hidden_dropout_prob", 0},
                           {"attention_probs_dropout_prob", 0}});
  const auto llama = model({{"model_type", "llama"},
                            {"vocab_size", 32000},
                            {"hidden_size", 4096},
                            {"intermediate_size", 11008},
                            {"num_hidden_layers", 32},
                            {"num_attention_heads", 32},
                            {"max_position_embeddings", 4096}});
  auto adapted = llama, over_nf4 = llama;
  adapted.Adapt({.rank = 16, .alpha = 32});
  over_nf4.Adapt({.rank = 16, .alpha = 32}, 4.127);
  struct Run {
    const char* name;
    ModelShape model;
    std::int64_t micro_batch, length;
    double measured;
  };
  const Run runs[] = {{"Llama-2-7B", llama, 1, 4096, 129.9},       {"GPT-2, 1,024 tokens", gpt2, 64, 1024, 21.2},
                      {"GPT-2, 512 tokens", gpt2, 32, 512, 7.325}, {"BERT-large", bert, 256, 128, 30.355},
                      {"LoRA", adapted, 4, 2048, 46.206},          {"QLoRA", over_nf4, 4, 2048, 37.261}};
  for (const Run& run : runs) {
    const Plan plan = PlanOf({.model = run.model,
                              .ranks_per_machine = 1,
                              .global_batch = run.micro_batch,
                              .micro_batch = run.micro_batch,
                              .sequence_length = run.length,
                              .bf16 = true},
                             {});
    const auto bytes = static_cast<double>(plan.memory[plan.fullest].total() - Of(plan, MemoryKind::kProcess));
    EXPECT_NEAR(bytes / (1 << 30) / run.measured, 1, 0.02) << run.name << ": " << bytes / (1 << 30);
  }
}

/// Attention over a window w of a sequence of n tokens: the first w queries see 1 to w keys, the others w.
TEST(Windows, AttentionHasTheWorkOfTheKeysThatQueriesSee) {
  constexpr std::int64_t kLength = 4096, kWindow = 1024;
  double pairs = 0, all = 0;
  for (std::int64_t query = 0; query < kLength; ++query) {
    pairs += static_cast<double>(std::min(query + 1, kWindow));
    all += static_cast<double>(query + 1);
  }
  // A query that sees its own key only counts as half a pair, as without a window.
  EXPECT_NEAR(AttendedLength(kLength, kWindow) / kLength, pairs / all, 1e-3);
  EXPECT_EQ(AttendedLength(kLength, kWindow), 2 * 1024 - 256);
  EXPECT_EQ(AttendedLength(kLength, 0), kLength);
  EXPECT_EQ(AttendedLength(kLength, kLength), kLength);
  EXPECT_EQ(AttendedLength(512, kWindow), 512);
}

/// Llama 3 8B: queries, keys and values are one product, and so are both halves of SwiGLU.
TEST(Products, OfABlockOnAverage) {
  const double elements = 4096.0 * (4096 + 2 * 1024) + 4096.0 * 4096 + 4096.0 * 2 * 14336 + 14336.0 * 4096;
  EXPECT_DOUBLE_EQ(SetupOf8B(8).model.FlopsPerProduct(512), 2 * 512 * elements / 4);
}

TEST(Windows, CountBlockByBlock) {
  const TrainingSetup whole = SetupOf8B(8);
  TrainingSetup all = whole, some = whole;
  all.model.LimitAttention(std::vector<std::int64_t>(32, 1024));
  std::vector<std::int64_t> windows(32, 0);
  for (std::size_t block = 0; block < windows.size(); ++block) windows[block] = block % 4 == 3 ? 0 : 1024;
  some.model.LimitAttention(windows);
  EXPECT_EQ(all.model.marked_blocks.size(), 1u);
  EXPECT_EQ(some.model.marked_blocks.size(), 2u);
  // 12 · layers · heads · head_dim · length, with 1,792 of the 4,096 tokens where there is a window.
  const double products = whole.model.FlopsPerToken(0), attention = 12.0 * 32 * 4096 * 4096;
  EXPECT_NEAR(whole.model.FlopsPerToken(4096), products + attention, 1);
  EXPECT_NEAR(all.model.FlopsPerToken(4096), products + attention * 1792 / 4096, 1);
  EXPECT_NEAR(some.model.FlopsPerToken(4096), products + attention * (0.75 * 1792 / 4096 + 0.25), 1);
  // Time: 14 operations for each channel of the queries and each pair, at half the rate of products. The engine's
  // blocks of 64 queries see 63 keys more.
  const Machine machine = Machine::Find("p5en.48xlarge").value();
  const double seen = AttendedLength(4096, 1024 + 63);
  const double saved = 14.0 * 4096 * 4096 * (4096 - seen) / 2 / (0.5 * machine.RankRate(true, 8));
  const auto attention_time = [&](const TrainingSetup& setup) {
    const LayoutCost cost = CostOfLayout(setup, {}, &machine);
    double seconds = 0;
    for (std::int64_t block = 0; block < 32; ++block) {
      const PartCost& once = cost.blocks[setup.model.KindOf(block)].once;
      seconds += once.forward_s + once.backward_s;
    }
    return seconds;
  };
  EXPECT_NEAR(attention_time(whole) - attention_time(all), 32 * saved, 1e-6 * 32 * saved);
  EXPECT_NEAR(attention_time(whole) - attention_time(some), 24 * saved, 1e-6 * 24 * saved);
  // The bubble of a pipeline is some of its passes.
  const Plan piped = PlanOf(whole, {.pipeline = 4}), shorter = PlanOf(all, {.pipeline = 4});
  EXPECT_LT(shorter.time.bubble, piped.time.bubble);
  EXPECT_NEAR(shorter.time.bubble / shorter.time.compute, piped.time.bubble / piped.time.compute, 1e-3);
  EXPECT_EQ(Of(PlanOf(all, {}), MemoryKind::kActivations), Of(PlanOf(whole, {}), MemoryKind::kActivations));
}

/// What was marked before stays marked.
TEST(Windows, StayWithFrozenBlocksAndAdapters) {
  TrainingSetup setup = SetupOf8B(8);
  setup.model.LimitAttention(std::vector<std::int64_t>(16, 1024));  // of the first half
  setup.model.Freeze({"model.layers.?.*"});
  EXPECT_EQ(setup.model.marked_blocks.size(), 3u);
  setup.model.Adapt({.rank = 16});
  EXPECT_EQ(setup.model.marked_blocks.size(), 2u);
  EXPECT_NEAR(setup.model.AttendedLength(4096), (1792 + 4096) / 2, 1e-9);
}

/// Blocks may differ in what is frozen. A stage that trains nothing sums nothing.
TEST(Memory, StagesKeepStateOfTheBlocksThatTheyTrain) {
  TrainingSetup setup = SetupOf8B(4);
  setup.model.Freeze({"model.embed_tokens.*", "model.layers.?.*", "model.layers.1?.*", "model.layers.20.*"});
  EXPECT_EQ(setup.model.marked_blocks.size(), 2u);
  for (const int zero : {0, 1, 2, 3}) {
    const ParallelOptions options{.pipeline = 2, .zero = zero};
    const Layout layout = MakeLayout(setup, options).value();
    const LayoutCost cost = CostOfLayout(setup, options, nullptr);
    const std::vector<RankShare> shares = SharesOf(setup, layout, cost);
    EXPECT_EQ(shares[0].trained, 0);
    EXPECT_EQ(shares[1].trained, setup.model.TrainedCount());
    EXPECT_EQ(shares[0].elements + shares[1].elements, setup.model.ParameterCount());
    const auto lines_of = [&](const RankShare& share, ExchangeKind kind) {
      std::int64_t bytes = 0;
      for (const TrafficLine& line : TrafficOf(setup, layout, cost, share)) {
        if ((line.purpose == "gradients" || line.purpose == "weights") && line.kind == kind) bytes += line.bytes;
      }
      return bytes;
    };
    EXPECT_EQ(lines_of(shares[0], zero == 0 ? ExchangeKind::kAllReduce : ExchangeKind::kReduceScatter), 0);
    EXPECT_GT(lines_of(shares[1], zero == 0 ? ExchangeKind::kAllReduce : ExchangeKind::kReduceScatter), 0);
    EXPECT_EQ(lines_of(shares[0], ExchangeKind::kAllGather) > 0, zero == 3);
  }
}

/// The reference's passes keep nothing. But all pairs of a step wait for them, and the head scales what it sends back.
TEST(Memory, PairsOfAStepAreThereBeforeItsPasses) {
  TrainingSetup setup = SetupOf8B(1);
  setup.model.Freeze({"*"});
  const auto of = [&](const TrainingSetup& each) {
    return MakePlan(each, {.recompute = Recompute::kFull}, Machine::ThisMachine()).value();
  };
  const Plan plain = of(setup);
  setup.compares_pairs = true;
  const Plan pairs = of(setup);
  EXPECT_EQ(Of(pairs, MemoryKind::kData) - Of(plain, MemoryKind::kData), 64 * 4096 * 28);
  EXPECT_GE(Of(pairs, MemoryKind::kWorking), Of(plain, MemoryKind::kWorking));
  for (const MemoryKind kind : {MemoryKind::kWeights, MemoryKind::kActivations, MemoryKind::kSnapshot}) {
    EXPECT_EQ(Of(pairs, kind), Of(plain, kind)) << MemoryKindName(kind);
  }
}

/// Every byte that is sent between stages is received.
TEST(Traffic, SendsMeetReceives) {
  Random random(5);
  for (int i = 0; i < 50; ++i) {
    TrainingSetup setup = SetupOf8B(16);
    setup.model = LlamaShape(512, 1024, 8, 24);
    ParallelOptions options{.tensor = 1 << random.Below(2),
                            .sequence = random.Below(2) == 0,
                            .pipeline = 1 << random.Below(4),
                            .zero = static_cast<int>(random.Below(4))};
    if (options.pipeline > 1 && random.Below(2) == 0) {
      options.schedule = PipelineSchedule::kInterleaved;
      options.virtual_stages = 2 + static_cast<int>(random.Below(2));
      if (options.pipeline * options.virtual_stages > 24) continue;
    }
    setup.compares_pairs = random.Below(2) == 0;  // whose reference goes forward only
    const Layout layout = MakeLayout(setup, options).value();
    const LayoutCost cost = CostOfLayout(setup, options, nullptr);
    std::int64_t sent = 0, received = 0;
    for (const RankShare& share : SharesOf(setup, layout, cost)) {
      for (const TrafficLine& line : TrafficOf(setup, layout, cost, share)) {
        if (line.kind == ExchangeKind::kSend) sent += line.bytes;
        if (line.kind == ExchangeKind::kReceive) received += line.bytes;
      }
    }
    EXPECT_EQ(sent, received);
    const std::int64_t boundaries = std::int64_t{options.pipeline} * options.virtual_stages - 1;
    const std::int64_t bytes = 4096 * 512 * 2 / (options.sequence ? options.tensor : 1);
    EXPECT_EQ(sent, (setup.compares_pairs ? 3 : 2) * boundaries * layout.microbatches * bytes);
  }
}

/// Rajbhandari et al. 2019, section 7: zero 1 and 2 send as much as plain data parallelism; zero 3 half as much again,
/// but for what the next pass uses at once: the head goes forward and then back.
TEST(Traffic, ShardingCostsWhatThePaperSays) {
  TrainingSetup setup = SetupOf8B(8);
  setup.global_batch = 8;  // one micro-batch
  setup.bf16 = false;      // so that weights and gradients have the same size
  const auto sent = [&](int zero) {
    double sum = 0;
    for (const TrafficLine& line : PlanOf(setup, {.zero = zero}).traffic) {
      if (line.purpose == "gradients" || line.purpose == "weights") sum += line.sent();
    }
    return sum;
  };
  EXPECT_DOUBLE_EQ(sent(1), sent(0));
  EXPECT_DOUBLE_EQ(sent(2), sent(0));
  const double head = 7.0 / 8 * static_cast<double>(setup.model.vocab_size * 4096 + 4096) * 4;
  EXPECT_DOUBLE_EQ(sent(3), 1.5 * sent(0) - head);
}

/// With one stage, the head goes back at once, and the embedding is used next when a micro-batch ends.
TEST(Traffic, PassesShareWhatIsGathered) {
  TrainingSetup setup = SetupOf8B(8);
  const auto passes_of = [&](const ParallelOptions& options) {
    const Layout layout = MakeLayout(setup, options).value();
    const LayoutCost cost = CostOfLayout(setup, options, nullptr);
    return RunShardedPasses(layout, SharesOf(setup, layout, cost).back());
  };
  const Layout layout = MakeLayout(setup, {.zero = 3}).value();
  const LayoutCost cost = CostOfLayout(setup, layout.options, nullptr);
  const RankShare share = SharesOf(setup, layout, cost).front();
  const std::int64_t m = layout.microbatches, head = share.head_groups.total(),
                     embedding = share.embedding_groups.total();
  ASSERT_EQ(m, 8);
  EXPECT_EQ(passes_of({.zero = 3}).gathers.elements, 2 * m * share.elements - m * head - (m - 1) * embedding);
  EXPECT_EQ(passes_of({.zero = 3, .reshard = false}).gathers.elements, m * share.elements - (m - 1) * embedding);
  EXPECT_EQ(passes_of({.zero = 2}).scatters.elements, m * share.elements);
  EXPECT_EQ(passes_of({.zero = 2}).scatters.operations, m * 34);

  // Two micro-batches are under way on the last of two stages; with one in turn, it is one.
  const auto scatters = [&](PipelineSchedule schedule) {
    return passes_of({.pipeline = 2, .schedule = schedule, .zero = 2}).scatters.operations;
  };
  EXPECT_LT(scatters(PipelineSchedule::kZeroBubble), scatters(PipelineSchedule::k1F1B));
}

/// An evaluation uses each part once for a micro-batch. A tied table is gathered for the first embedding, and then for
/// each head, behind which the next embedding uses it.
TEST(Traffic, TheReferenceGathersEachPartOnceForAMicroBatch) {
  TrainingSetup setup = SetupOf8B(8);
  setup.compares_pairs = true;
  const auto gathered = [&](const ParallelOptions& options) {
    const Layout layout = MakeLayout(setup, options).value();
    const LayoutCost cost = CostOfLayout(setup, options, nullptr);
    const RankShare share = SharesOf(setup, layout, cost).front();
    for (const TrafficLine& line : TrafficOf(setup, layout, cost, share)) {
      if (line.purpose == kReferencePurpose && line.axis == "shard") return std::pair(line.bytes, share);
    }
    return std::pair(std::int64_t{0}, share);
  };
  constexpr std::int64_t kMicroBatches = 8, kBytes = 2;
  for (const bool reshard : {true, false}) {
    const auto& [bytes, share] = gathered({.zero = 3, .reshard = reshard});
    EXPECT_EQ(bytes, kMicroBatches * share.elements * kBytes) << "it frees behind forward passes in any case";
  }
  EXPECT_EQ(gathered({.zero = 2}).first, 0);
  setup.model = GptShape(1024, 16, 8);
  setup.sequence_length = 1024;
  const auto& [bytes, share] = gathered({.zero = 3});
  ASSERT_TRUE(share.head_uses_embedding);
  EXPECT_EQ(bytes, (kMicroBatches * share.elements + share.embedding_groups.total()) * kBytes);
}

TEST(Traffic, GradientsInSixteenBitsAreHalf) {
  const TrainingSetup setup = SetupOf8B(16);
  for (const ParallelOptions& options : {ParallelOptions{}, {.zero = 1}, {.zero = 3}, {.shard = 8, .zero = 2}}) {
    ParallelOptions halved = options;
    halved.reduce_in_bf16 = true;
    const auto whole = PlanOf(setup, options).traffic, half = PlanOf(setup, halved).traffic;
    ASSERT_EQ(whole.size(), half.size());
    for (std::size_t i = 0; i < whole.size(); ++i) {
      EXPECT_EQ(half[i].bytes, whole[i].purpose == "gradients" ? whole[i].bytes / 2 : whole[i].bytes) << whole[i].axis;
    }
  }
}

TEST(Time, BubblesAreTheSchedules) {
  TrainingSetup setup = SetupOf8B(4);
  setup.global_batch = 16;
  const auto bubble = [&](PipelineSchedule schedule, int stages) {
    return PlanOf(setup, {.pipeline = 4, .schedule = schedule, .virtual_stages = stages}).time.bubble_share();
  };
  EXPECT_NEAR(bubble(PipelineSchedule::k1F1B, 1), 3.0 / (16 + 3), 1e-9);
  EXPECT_NEAR(bubble(PipelineSchedule::kSimple, 1), 3.0 / (16 + 3), 1e-9);
  EXPECT_NEAR(bubble(PipelineSchedule::kInterleaved, 2), 1.5 / (16 + 1.5), 1e-9);
  EXPECT_LT(bubble(PipelineSchedule::kZeroBubble, 1), 0.5 * bubble(PipelineSchedule::k1F1B, 1));
}

/// Over a frozen model, a block's backward pass makes as many products as its forward pass. So the reference adds half
/// of the time of the passes that learn; with a pipeline, no second bubble.
TEST(Time, TheReferenceAddsAForwardPass) {
  TrainingSetup setup = SetupOf8B(4);
  setup.model.Freeze({"*"});
  const std::vector<ParallelOptions> layouts = {
      {}, {.tensor = 4}, {.tensor = 2, .sequence = true, .pipeline = 2}, {.pipeline = 4}, {.zero = 3}};
  for (const ParallelOptions& options : layouts) {
    setup.compares_pairs = false;
    const Plan plain = PlanOf(setup, options);
    setup.compares_pairs = true;
    const Plan pairs = PlanOf(setup, options);
    EXPECT_EQ(plain.time.reference, 0);
    const double learning = pairs.time.total() - pairs.time.reference;
    EXPECT_LE(learning, plain.time.total()) << "attention reaches over half of a row";
    EXPECT_GT(learning, 0.8 * plain.time.total());
    EXPECT_NEAR(pairs.time.reference / (pairs.time.compute + pairs.time.tensor), 0.5, 0.1) << LayoutYaml(pairs.layout);
    EXPECT_NEAR(pairs.time.bubble_share(), plain.time.bubble_share(), 0.01);
  }
  const Plan plan = PlanOf(setup, {});
  TrainingSetup adapted = SetupOf8B(4);
  adapted.compares_pairs = true;
  adapted.model.Adapt({.rank = 64});
  EXPECT_EQ(PlanOf(adapted, {}).time.reference, plan.time.reference) << "the reference has no adapters";
  EXPECT_GT(PlanOf(adapted, {}).time.compute, plan.time.compute);
  EXPECT_THAT(PlanText(plan, setup, Machine::Find("p5en.48xlarge").value()), HasSubstr("  reference "));
  EXPECT_EQ(PlanJson(plan, setup, Machine::Find("p5en.48xlarge").value())["step"]["reference_s"], plan.time.reference);
}

TEST(Time, WithoutOverlapNothingHidesTheSums) {
  TrainingSetup setup = SetupOf8B(64);
  setup.ranks_per_machine = 8;
  for (const int zero : {0, 1}) {
    const Plan beside = PlanOf(setup, {.zero = zero}), behind = PlanOf(setup, {.zero = zero, .overlap = false});
    const Machine machine = Machine::Find("p5en.48xlarge").value();
    double sums = 0;
    for (const TrafficLine& line : behind.traffic) {
      if (line.purpose == "gradients") sums += line.Seconds(machine, setup.ranks_per_machine);
    }
    EXPECT_GE(behind.time.gradients, sums) << zero;
    EXPECT_LT(beside.time.gradients, sums) << zero;
    EXPECT_EQ(behind.time.compute, beside.time.compute);
    EXPECT_EQ(behind.memory[0].total(), beside.memory[0].total());
  }
}

TEST(Plan, RefusesWithTheArithmetic) {
  const Machine machine = Machine::Find("p5.48xlarge").value();
  TrainingSetup setup = SetupOf8B(48);
  const auto says = [&](const ParallelOptions& options, std::string_view what) {
    const auto plan = MakePlan(setup, options, machine);
    ASSERT_FALSE(plan);
    EXPECT_THAT(plan.error().ToString(), HasSubstr(what));
  };
  says({.tensor = 1}, "train.global_batch 64 is not a multiple of 48 data-parallel ranks");
  says({.zero = 2, .overlap = false}, "train.parallel.overlap is false, but zero 2");
  says({.pipeline = 48}, "48 stages (pipeline 48 × virtual_stages 1) are more than 32 blocks");
  setup.model.num_heads = 48;
  setup.model.num_kv_heads = 6;
  says({.tensor = 16},
       "6 key-value heads do not divide among 16 "
       "tensor-parallel ranks, nor the ranks among the heads");
}

TEST(Plan, TextAndJsonSayTheSame) {
  const Machine machine = Machine::Find("p5.48xlarge").value();
  const TrainingSetup setup = SetupOf8B(64);
  const ParallelOptions options{.tensor = 2, .sequence = true, .pipeline = 4, .zero = 1, .recompute = Recompute::kFull};
  const Plan plan = MakePlan(setup, options, machine).value();
  const Json json = PlanJson(plan, setup, machine);
  EXPECT_EQ(json["parallel"]["data"], 8);
  EXPECT_EQ(json["microbatches"], 8);
  EXPECT_EQ(json["memory"].size(), 4u);
  EXPECT_EQ(json["communication"].size(), plan.traffic.size());
  EXPECT_EQ(json["fits"], plan.fits());
  const std::string text = PlanText(plan, setup, machine);
  EXPECT_THAT(text, HasSubstr("pipeline 4 × replica 1 × shard 8 × tensor 2, "
                              "sequence, zero 1, 1f1b, recompute full"));
  EXPECT_THAT(text, HasSubstr("8,030,261,248 parameters"));
  EXPECT_EQ(LayoutYaml(plan.layout), "{tensor: 2, sequence: true, pipeline: 4, zero: 1, recompute: full}");
}

}  // namespace
}  // namespace millrace::plan
