#include "millrace/train/auto_layout.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "millrace/engine/device/choose_device.h"
#include "millrace/plan/machine.h"
#include "millrace/plan/search.h"

namespace millrace::train {
namespace {

plan::TrainingSetup SetupOf(const Options& options, const plan::ModelShape& model, int ranks) {
  plan::TrainingSetup setup = options.setup;
  setup.model = model;
  setup.ranks = ranks;
  setup.global_batch = options.global_batch;
  setup.micro_batch = options.micro_batch;
  setup.sequence_length = options.data.sequence_length;
  setup.bf16 = options.precision != at::kFloat;
  setup.compares_pairs = options.data.objective == data::Objective::kDpo;
  return setup;
}

Result<engine::ParallelOptions> Choose(const engine::Collective& world, const Options& options,
                                       const plan::ModelShape& model) {
  const plan::Machine machine = MR_TRY(plan::Machine::Find(options.machine));
  const plan::TrainingSetup setup = SetupOf(options, model, world.size());
  const plan::SearchResult found = MR_TRY(plan::ChooseLayout(setup, machine,
                                                             {.memory_weight = *options.auto_memory_weight,
                                                              .placement = options.parallel.placement,
                                                              .reduce_in_bf16 = options.parallel.reduce_in_bf16}));
  return found.options;
}

}  // namespace

plan::ModelShape TrainedShape(const Options& options, const engine::ModelConfig& config,
                              const std::optional<engine::LoraOptions>& lora) {
  plan::ModelShape model = config.Shape();
  if (lora) {
    model.Adapt(*lora, options.base_quantization ? BitsPerElement(*options.base_quantization) : 0);
  } else {
    model.Freeze(options.freeze);
  }
  return model;
}

Result<engine::ParallelOptions> ChooseParallel(engine::Collective& world, const Options& options,
                                               const plan::ModelShape& model) {
  if (!options.auto_memory_weight) return options.parallel;
  if (!options.device.is_cpu() && options.machine.empty()) {
    return Fail(Code::kInvalidArgument,
                "train.parallel: auto on GPUs needs run.machine, the name or the file of a description as those of "
                "docs/machines; or give a layout");
  }
  engine::ParallelOptions o = options.parallel;
  if (world.rank() == 0) o = MR_TRY(Choose(world, options, model));
  const at::Tensor numbers =
      at::tensor({o.data, o.shard, o.tensor, o.sequence ? 1 : 0, o.pipeline, static_cast<int>(o.schedule),
                  o.virtual_stages, o.zero, o.reshard ? 1 : 0, static_cast<int>(o.recompute), o.recompute_every},
                 at::kInt);
  MR_TRY(world.Broadcast(numbers, 0));
  const int* n = numbers.data_ptr<int>();
  o.data = n[0];
  o.shard = n[1];
  o.tensor = n[2];
  o.sequence = n[3] == 1;
  o.pipeline = n[4];
  o.schedule = static_cast<engine::PipelineSchedule>(n[5]);
  o.virtual_stages = n[6];
  o.zero = n[7];
  o.reshard = n[8] == 1;
  o.recompute = static_cast<engine::Recompute>(n[9]);
  o.recompute_every = n[10];
  return o;
}

Result<std::uint64_t> PlannedMemory(const Options& options, const plan::ModelShape& model,
                                    const engine::ParallelOptions& parallel, int ranks) {
  const plan::Machine machine = MR_TRY(plan::Machine::Find(options.machine));
  const plan::TrainingSetup setup = SetupOf(options, model, ranks);
  const plan::Plan plan = MR_TRY(plan::MakePlan(setup, parallel, machine));
  return static_cast<std::uint64_t>(plan.memory[plan.fullest].total());
}

Result<double> PromisedRate(const Options& options, int ranks) {
  const int beside = std::max(1, std::min(options.setup.ranks_per_machine, ranks));
  if (!options.device.is_cpu() && options.machine.empty()) {
    const auto peaks = plan::PeaksOf(engine::DeviceName(options.device)).value_or(plan::GpuPeaks{});
    const double rate = options.fp8 != engine::ops::Fp8Scaling::kNone ? peaks.fp8
                        : options.precision != at::kFloat             ? peaks.bf16
                        : options.tf32                                ? peaks.tf32
                                                                      : peaks.f32;
    return rate * ranks * std::min(1.0, static_cast<double>(engine::GpuCount()) / beside);
  }
  const plan::Machine machine = MR_TRY(plan::Machine::Find(options.machine));
  return machine.RankRate(options.precision != at::kFloat, beside) * ranks;
}

}  // namespace millrace::train
