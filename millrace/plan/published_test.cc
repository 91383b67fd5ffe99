// Predictions beside runs that others have published. docs/scale.md has the same tables.
#include <gtest/gtest.h>

#include <cmath>

#include "millrace/plan/plan.h"
#include "millrace/plan/testing_setups.h"

namespace millrace::plan {
namespace {

/// A row of table 1 of Narayanan et al. 2021: GPT on DGX A100 of 80 GB, sequences of 2048 tokens, a vocabulary of
/// 51,200 and full recomputation. The rate counts the floating-point operations of recomputation, too.
struct MegatronRow {
  double billions;
  int heads, hidden, layers, tensor, pipeline, gpus, batch;
  double teraflops;  ///< of a GPU in a second, measured
};
constexpr MegatronRow kMegatron[] = {
    {1.7, 24, 2304, 24, 1, 1, 32, 512, 137},          {3.6, 32, 3072, 30, 2, 1, 64, 512, 138},
    {7.5, 32, 4096, 36, 4, 1, 128, 512, 142},         {18.4, 48, 6144, 40, 8, 1, 256, 1024, 135},
    {39.1, 64, 8192, 48, 8, 2, 512, 1536, 138},       {76.1, 80, 10240, 60, 8, 4, 1024, 1792, 140},
    {145.6, 96, 12288, 80, 8, 8, 1536, 2304, 148},    {310.1, 128, 16384, 96, 8, 16, 1920, 2160, 155},
    {529.6, 128, 20480, 105, 8, 35, 2520, 2520, 163}, {1008.0, 160, 25600, 128, 8, 64, 3072, 3072, 163},
};

/// The paper's formula for an iteration's floating-point operations, recomputation included.
double MegatronFlops(const MegatronRow& row) {
  const double s = 2048, h = row.hidden, l = row.layers, v = 51200;
  return 96 * row.batch * s * l * h * h * (1 + s / (6 * h) + v / (16 * l * h));
}

/// Returns the time that these runs take for what this engine does not do: their attention writes its scores to memory.
/// A forward pass writes, scales, normalises, drops and reads them: 13 bytes each in 16 bits and a mask. A backward
/// pass does it twice, and recomputation once more.
double ScoresSeconds(const MegatronRow& row, const Machine& machine) {
  const double sequences = double{1} * row.batch / (row.gpus / row.tensor / row.pipeline);
  const double scores = sequences * row.layers / row.pipeline * row.heads / row.tensor * 2048 * 2048;
  return scores * 13 * 4 / machine.memory_bandwidth;
}

TEST(Published, MegatronsTable) {
  const Machine machine = Machine::Find("dgx-a100-80gb").value();
  double squares = 0;
  for (const MegatronRow& row : kMegatron) {
    TrainingSetup setup{.model = GptShape(row.hidden, row.heads, row.layers),
                        .ranks = row.gpus,
                        .ranks_per_machine = 8,
                        .global_batch = row.batch,
                        .sequence_length = 2048,
                        .bf16 = true};
    EXPECT_NEAR(static_cast<double>(setup.model.ParameterCount()) / 1e9, row.billions, 0.005 * row.billions + 0.05);
    // The paper does not say which size of micro-batches each row has, but that the best one was taken; nor where
    // stages are interleaved.
    double best = 0;
    engine::ParallelOptions options{
        .tensor = row.tensor, .pipeline = row.pipeline, .recompute = engine::Recompute::kFull};
    for (const int micro_batch : {1, 2, 4, 8}) {
      setup.micro_batch = micro_batch;
      for (const int stages : {1, 2, 3}) {
        if (stages > 1 && (row.pipeline == 1 || row.layers % (row.pipeline * stages) != 0)) continue;
        options.virtual_stages = stages;
        options.schedule = stages > 1 ? engine::PipelineSchedule::kInterleaved : engine::PipelineSchedule::k1F1B;
        const auto plan = MakePlan(setup, options, machine);
        if (!plan || !plan->fits()) continue;
        const double seconds = plan->time.total() + ScoresSeconds(row, machine);
        best = std::max(best, MegatronFlops(row) / seconds / row.gpus / 1e12);
      }
    }
    const double off = best / row.teraflops - 1;
    squares += off * off;
    std::printf("%7.1f billion: %.0f measured, %.0f predicted, %+.0f %%\n", row.billions, row.teraflops, best,
                100 * off);
    EXPECT_LT(std::abs(off), 0.15) << row.billions << " billion parameters";
  }
  EXPECT_LT(std::sqrt(squares / std::size(kMegatron)), 0.08);
}

/// torchtitan's benchmarks/llama3_h100_202412_torchtitan.md, rows in bfloat16: Llama 3.1 8B, FSDP, torch.compile,
/// sequences of 8192 tokens, 2 on each GPU, selective recomputation (every second product is computed again).
TEST(Published, TorchtitansTable) {
  const Machine machine = Machine::Find("grand-teton-h100").value();
  struct Row {
    int gpus;
    double tokens, gigabytes;  // a second of a GPU; peak
  };
  for (const Row& row : {Row{8, 6667, 77.0 * 1.0737}, Row{128, 6514, 62.0 * 1.0737}}) {
    const TrainingSetup setup{.model = Llama8B(),
                              .ranks = row.gpus,
                              .ranks_per_machine = 8,
                              .global_batch = 2 * row.gpus,
                              .micro_batch = 2,
                              .sequence_length = 8192,
                              .bf16 = true};
    const auto plan = MakePlan(setup, {.zero = 3, .recompute = engine::Recompute::kSelective}, machine);
    ASSERT_TRUE(plan) << plan.error().ToString();
    const double tokens = 2 * 8192 / plan->time.total();
    const double gigabytes = static_cast<double>(plan->memory[0].total()) / 1e9;
    std::printf("%d GPUs: %.0f tokens/s measured, %.0f predicted; %.1f GB measured, %.1f predicted\n%s\n", row.gpus,
                row.tokens, tokens, row.gigabytes, gigabytes, PlanText(*plan, setup, machine).c_str());
    EXPECT_NEAR(tokens, row.tokens, 0.15 * row.tokens);
    EXPECT_NEAR(gigabytes, row.gigabytes, 0.1 * row.gigabytes);
  }
}

}  // namespace
}  // namespace millrace::plan
