#include "millrace/train/run_plan.h"

#include <algorithm>
#include <cmath>

#include "millrace/train/auto_layout.h"
#include "millrace/train/checks.h"
#include "millrace/train/run_model.h"

namespace millrace::train {

Result<Plan> PlanRun(const PlannedRun& run) {
  const Options& options = run.options;
  const RankLayout& layout = run.layout;
  const int ranks = layout.world().size();
  Plan plan;
  plan.name = options.name;
  plan.precision = engine::PrecisionName(PrecisionOf(options));
  plan.device = options.device.str();
  plan.ranks = ranks;
  plan.parallel = layout.options();
  plan.shape = layout.mesh().shape();
  plan.global_batch = options.global_batch;
  plan.micro_batch = options.micro_batch;
  plan.sequence_length = options.data.sequence_length;
  plan.accumulation = static_cast<std::uint64_t>(MicroBatchesOf(options, layout));
  plan.records = run.dataset.records();
  plan.data_bytes = run.dataset.bytes();
  plan.samples_per_epoch = run.dataset.samples_per_epoch();
  plan.tokens_per_epoch = run.dataset.tokens_per_epoch();
  plan.steps_per_epoch = run.loader.batches_per_epoch();
  plan.steps = options.steps
                   ? *options.steps
                   : static_cast<std::uint64_t>(std::ceil(*options.epochs * static_cast<double>(plan.steps_per_epoch)));
  plan.resumed_from = run.steps_done;
  plan.last_step = plan.steps;
  if (options.steps_this_run) plan.last_step = std::min(plan.steps, run.steps_done + *options.steps_this_run);
  plan.parameters = run.config.ParameterCount();
  plan.flops_per_token = run.shape.FlopsPerToken(options.data.sequence_length);
  if (layout.world().rank() == 0) {
    plan.memory_bytes = MR_TRY(PlannedMemory(options, run.shape, layout.options(), ranks));
  }
  plan.checkpoint_url = options.checkpoint.url;
  return plan;
}

engine::Schedule ScheduleFor(const Options& options, std::uint64_t steps) {
  engine::Schedule schedule = options.schedule;
  schedule.total_steps = steps;
  if (options.warmup_proportion > 0) {
    schedule.warmup_steps = engine::WarmupSteps(options.warmup_proportion, steps);
  }
  return schedule;
}

}  // namespace millrace::train
