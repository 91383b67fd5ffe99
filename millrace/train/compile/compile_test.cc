// Runs whose steps are compiled, plain or neither.
#include <gtest/gtest.h>

#include <functional>
#include <string_view>
#include <vector>

#include "millrace/object/open/open.h"
#include "millrace/train/compile/compile_cache.h"
#include "millrace/train/compile/product_json.h"
#include "millrace/train/compile/step_compiler.h"
#include "millrace/train/testing/train_runs.h"

namespace millrace::train {
namespace {

class CompileTest : public TrainTest {
 protected:
  /// A run with an empty cache of its own.
  Options Compiled(std::string_view run) const {
    Options options = Tiny(run);
    options.compile = Compile::kOn;
    options.compile_cache = (folder_->path() / "compiled" / run).native();
    return options;
  }
  std::vector<CompileCache::Listed> EntriesOf(const Options& options) {
    const auto connection = object::OpenConnection({}).value();
    return CompileCache::Open(*connection, options.compile_cache).value().List().value();
  }
  static void ExpectNear(const std::map<std::uint64_t, double>& one, const std::map<std::uint64_t, double>& other,
                         double tolerance = 2e-5) {
    ASSERT_EQ(one.size(), other.size());
    for (const auto& [step, loss] : one) EXPECT_NEAR(loss, other.at(step), tolerance * loss) << "step " << step;
  }
};

TEST_F(CompileTest, EveryWayLearnsTheSame) {
  Options options = Tiny("auto");
  const Ran automatic = Run(options);
  ASSERT_TRUE(automatic.outcome);
  options.compile = Compile::kOff;
  const Ran plain = Run(options);
  ASSERT_TRUE(plain.outcome) << plain.outcome.error().ToString();
  EXPECT_NE(plain.losses, automatic.losses) << "the plain operations round in other places";
  ExpectNear(plain.losses, automatic.losses);
  const Ran compiled = Run(Compiled("on"));
  ASSERT_TRUE(compiled.outcome) << compiled.outcome.error().ToString();
  ExpectNear(compiled.losses, automatic.losses);
}

/// A run that is computed in each way.
struct Case {
  std::string_view name;
  int ranks = 1;
  std::function<void(Options&)> set;
  double tolerance = 2e-5;  ///< of a loss
};

TEST_F(CompileTest, EveryWayWorksInAnyLayout) {
  const std::vector<Case> cases = {
      {"zero bubble", 2,
       [](Options& o) { o.parallel = {.pipeline = 2, .schedule = engine::PipelineSchedule::kZeroBubble}; }},
      {"zero 3", 2, [](Options& o) { o.parallel = {.zero = 3}; }},
      {"recomputed", 1, [](Options& o) { o.parallel = {.recompute = engine::Recompute::kFull}; }},
      {"documents", 1, [](Options& o) { o.data.boundaries = true; }},
      {"dropout", 1, [](Options& o) { o.model_config["attention_dropout"] = 0.2; }},
      {"adapters", 1, [](Options& o) { o.lora = engine::LoraOptions{.rank = 4, .alpha = 16, .dropout = 0.1}; }},
      // Rounds to 8 bits of mantissa in other places.
      {"bfloat16", 1, [](Options& o) { o.precision = at::kBFloat16; }, 1e-2},
      {"smoothed", 1, [](Options& o) { o.loss = {.label_smoothing = 0.1, .z_loss = 1e-3}; }},
      {"GPT-2", 1,
       [](Options& o) {
         o.model_config = {{"model_type", "gpt2"}, {"n_embd", 32}, {"n_layer", 2}, {"n_head", 4}, {"n_positions", 32}};
       }},
  };
  for (const Case& each : cases) {
    SCOPED_TRACE(each.name);
    Options options = Compiled("layouts");
    options.steps = 4;
    options.eval.every_steps = 4;
    options.data.split.held_out = 0.1;
    each.set(options);
    const Ran on = RunRanks(options, each.ranks);
    ASSERT_TRUE(on.outcome) << on.outcome.error().ToString();
    for (const Compile other : {Compile::kAuto, Compile::kOff}) {
      options.compile = other;
      const Ran ran = RunRanks(options, each.ranks);
      ASSERT_TRUE(ran.outcome) << ran.outcome.error().ToString();
      ExpectNear(ran.losses, on.losses, each.tolerance);
      EXPECT_NEAR(ran.evals.at(4).loss, on.evals.at(4).loss, each.tolerance * on.evals.at(4).loss);
    }
  }
}

TEST_F(CompileTest, IsMeasuredOnceForAllRuns) {
  const Options options = Compiled("once");
  using From = CompileReport::From;
  EXPECT_EQ(RunRanks(options, 2).compiled.from, From::kMeasured);
  const auto first = EntriesOf(options);
  ASSERT_EQ(first.size(), 1u);
  ASSERT_TRUE(first[0].entry);
  const Json& made_for = first[0].entry->made_for;
  EXPECT_EQ(*JsonFind(made_for, "micro_batch"), 2);
  EXPECT_EQ(JsonString(*JsonFind(made_for, "model"), "model_type").value(), "llama");
  EXPECT_EQ(RunRanks(options, 2).compiled.from, From::kCache);
  const auto second = EntriesOf(options);
  ASSERT_EQ(second.size(), 1u);
  EXPECT_EQ(second[0].modified, first[0].modified);
  // Another micro-batch is another step.
  Options larger = options;
  larger.micro_batch = 4;
  EXPECT_EQ(RunRanks(larger, 2).compiled.from, From::kMeasured);
  EXPECT_EQ(EntriesOf(options).size(), 2u);
}

TEST_F(CompileTest, TakesTheChoicesOfTheCache) {
  // An entry that makes every product by BLAS.
  Options options = Compiled("chosen");
  options.steps = 3;
  const Ran measured = Run(options);
  ASSERT_TRUE(measured.outcome);
  CompiledEntry entry = *EntriesOf(options)[0].entry;
  const auto connection = object::OpenConnection({}).value();
  entry.products = Json::array({{{"rows", 64},
                                 {"columns", 32},
                                 {"inner", 48},
                                 {"left_transposed", false},
                                 {"right_transposed", true},
                                 {"result", "set"},
                                 {"method", "blas"}}});
  engine::ops::StepKernels chosen;
  ASSERT_TRUE(TakeChoices(entry.products, chosen));
  EXPECT_EQ(chosen.products.at({64, 32, 48, false, true}), engine::ops::ProductMethod::kBlas);
  entry.products[0]["method"] = "magic";
  EXPECT_EQ(TakeChoices(entry.products, chosen).error().code(), Code::kCorrupt);
  CompileCache cache = CompileCache::Open(*connection, options.compile_cache).value();
  ASSERT_TRUE(cache.Remove(cache.List().value()[0]));
  ASSERT_TRUE(cache.Keep(entry));
  EXPECT_EQ(Run(options).outcome.error().code(), Code::kCorrupt) << "the run reads the cache";
}

TEST(ProductJsonTest, KeepsProductsOfBothKinds) {
  using engine::ops::GpuNumber;
  const engine::ops::ProductShape on_cpu{64, 32, 48, true, false, engine::ops::ProductResult::kAdd};
  const engine::ops::GpuProduct plain{.rows = 8,
                                      .columns = 16,
                                      .inner = 32,
                                      .left = {.number = GpuNumber::kBfloat16, .stride = 40},
                                      .right = {.number = GpuNumber::kBfloat16, .transposed = true, .stride = 32},
                                      .out = {.number = GpuNumber::kBfloat16, .stride = 16},
                                      .result = engine::ops::ProductResult::kSetWithBias};
  engine::ops::GpuProduct blocks = plain;
  blocks.left = {.number = GpuNumber::kE4m3, .grain = engine::ops::Fp8Grain::kLines, .stride = 32};
  blocks.right = {
      .number = GpuNumber::kE4m3, .grain = engine::ops::Fp8Grain::kSquares, .transposed = true, .stride = 32};
  const engine::ops::SeenProducts seen{.on_cpu = {on_cpu}, .on_gpu = {plain, blocks}};
  engine::ops::SeenProducts read;
  ASSERT_TRUE(AddProducts(ParseJson(DumpJson(ProductsOf(seen)), "products").value(), read));
  EXPECT_EQ(read.on_cpu, seen.on_cpu);
  EXPECT_EQ(read.on_gpu, seen.on_gpu);

  const engine::ops::StepKernels kernels{.products = {{on_cpu, engine::ops::ProductMethod::kMatmul}},
                                         .gpu_products = {{plain, {{1, 2, 3}}}, {blocks, {{4}}}}};
  const Json choices = ParseJson(DumpJson(ChoicesOf(kernels)), "choices").value();
  engine::ops::StepKernels taken;
  ASSERT_TRUE(TakeChoices(choices, taken));
  EXPECT_EQ(taken.products, kernels.products);
  EXPECT_EQ(taken.gpu_products, kernels.gpu_products);
  for (const char* const key : {"left", "right", "out", "algorithm", "result", "rows"}) {
    Json damaged = Json::array({choices[1]});
    damaged[0][key] = "x";
    const Status status = TakeChoices(damaged, taken);
    EXPECT_FALSE(status) << key;
  }
}

TEST_F(CompileTest, ResumesWithTheStepOfTheCheckpoint) {
  Options options = Compiled("resumed");
  options.checkpoint.url = CheckpointUrl("resumed");
  const Ran whole = Run([&] {
    Options undisturbed = options;
    undisturbed.checkpoint.url = CheckpointUrl("undisturbed");
    return undisturbed;
  }());
  ASSERT_TRUE(whole.outcome);
  const Ran before = Run(options, /*stop_after=*/5);
  ASSERT_TRUE(before.outcome);
  // Another cache, which stays empty: the checkpoint has the step.
  options.compile_cache += "-other";
  Ran after = Run(options);
  ASSERT_TRUE(after.outcome) << after.outcome.error().ToString();
  EXPECT_TRUE(EntriesOf(options).empty());
  EXPECT_EQ(after.compiled.from, CompileReport::From::kCheckpoint);
  after.losses.insert(before.losses.begin(), before.losses.end());
  EXPECT_EQ(after.losses, whole.losses);
}

TEST_F(CompileTest, OnlyCompilesIfToldSo) {
  Options options = Compiled("ahead");
  options.checkpoint.url = CheckpointUrl("ahead");
  options.compile_only = true;
  const Ran ran = Run(options);
  ASSERT_TRUE(ran.outcome) << ran.outcome.error().ToString();
  EXPECT_TRUE(ran.losses.empty());
  EXPECT_GT(ran.compiled.peak_memory, 10'000'000u) << "a process of PyTorch";
  EXPECT_FALSE(std::filesystem::exists(options.checkpoint.url));
  EXPECT_EQ(EntriesOf(options).size(), 1u);
  options.compile = Compile::kAuto;
  EXPECT_EQ(Run(options).outcome.error().code(), Code::kInvalidArgument);
}

TEST_F(CompileTest, MeasuresAgainIfTheEntryIsDamaged) {
  const Options options = Compiled("damaged");
  ASSERT_TRUE(Run(options).outcome);
  const auto entries = EntriesOf(options);
  ASSERT_TRUE(WriteFileAtomic("/" + entries[0].key, AsBytes(std::string_view("{\"format\": 1}"))));
  const Ran again = Run(options);
  EXPECT_TRUE(again.outcome);
  EXPECT_EQ(again.compiled.from, CompileReport::From::kMeasured);
}

TEST_F(CompileTest, PlainOperationsDivideNoHead) {
  Options options = Tiny("tensor");
  options.parallel.tensor = 2;
  options.compile = Compile::kOff;
  const auto error = RunRanks(options, 2).outcome.error();
  EXPECT_EQ(error.code(), Code::kUnsupported);
  EXPECT_NE(error.message().find("train.compile"), std::string::npos);
}

}  // namespace
}  // namespace millrace::train
