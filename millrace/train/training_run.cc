#include "millrace/train/training_run.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

#include "millrace/checkpoint/read/reader.h"
#include "millrace/engine/errors.h"
#include "millrace/engine/models/make_model.h"
#include "millrace/engine/runtime.h"
#include "millrace/tokenizer/open/open.h"
#include "millrace/train/auto_layout.h"
#include "millrace/train/checks.h"
#include "millrace/train/ranks/same_job.h"
#include "millrace/train/state/run_state.h"
#include "millrace/train/state/tuned_config.h"

namespace millrace::train {

TrainingRun::TrainingRun(object::Connection& the_connection, TracedConnection* traced_connection,
                         engine::Collective& world, const Options& its_options, const std::vector<RunObserver*>& told)
    : connection(the_connection),
      traced(traced_connection),
      group(world),
      options(its_options),
      clock(*its_options.clock),
      data_budget(its_options.memory_budget),
      observers(its_options.log),
      judge(its_options.spikes, its_options.loss_scale) {
  if (!leads()) return;
  for (RunObserver* observer : told) observers.Add(*observer);
}

void TrainingRun::Abort(const Error& cause) {
  if (layout) layout->Abort(cause);
  if (!layout) group.Abort(cause);
}

Status TrainingRun::Build() {
  heartbeat = MR_TRY(Heartbeat::Open(options.heartbeat_file));
  MR_TRY(CheckSameJob(group, options.job));  // else ranks would wait for each other in vain, or learn apart
  MR_TRY(CheckDevices(group, options));
  const NetworkFigures network = MR_TRY(CheckNetwork(group, options, heartbeat));
  MR_TRY(OpenData());
  MR_TRY(OpenModel());
  MR_TRY(Resume());
  model.exchange->ShareValues(engine::ChangedValues::kAll);  // ranks read what they own
  MR_TRY(ChooseKernels());
  if (options.compile_only) return {};
  MR_TRY(OpenTracer());
  loader = MR_TRY(data::Loader::Start(dataset, data_budget, LoaderOptions(), data_state, options.log));
  runner = std::make_unique<StepRunner>(*layout, options, opened.shape, *loader, *model.passes, *model.exchange,
                                        MicroBatchesOf(options, *layout));
  MR_TRY(MakePlan());
  if (options.eval.every_steps > 0) {
    evaluator = MR_TRY(Evaluator::Open(connection, tokenizer, EvaluatedData(), options.dpo, options.eval.samples,
                                       options.device, *layout, options.log));
  }
  reporting = MR_TRY(RunReporting::Open({.connection = connection,
                                         .world = group,
                                         .options = options,
                                         .layout = *layout,
                                         .parameters = model.model->buffer(),
                                         .plan = plan,
                                         .network = network,
                                         .id = checkpoints ? checkpoints->first_run() : options.run_id},
                                        observers, heartbeat));
  return {};
}

Status TrainingRun::MakePlan() {
  const int ranks = group.size();
  plan.name = options.name;
  plan.precision = engine::PrecisionName(PrecisionOf(options));
  plan.device = options.device.str();
  plan.ranks = ranks;
  plan.parallel = layout->options();
  plan.shape = layout->mesh().shape();
  plan.global_batch = options.global_batch;
  plan.micro_batch = options.micro_batch;
  plan.sequence_length = options.data.sequence_length;
  plan.accumulation = static_cast<std::uint64_t>(MicroBatchesOf(options, *layout));
  plan.records = dataset->records();
  plan.data_bytes = dataset->bytes();
  plan.samples_per_epoch = dataset->samples_per_epoch();
  plan.tokens_per_epoch = dataset->tokens_per_epoch();
  plan.steps_per_epoch = loader->batches_per_epoch();
  plan.steps = options.steps
                   ? *options.steps
                   : static_cast<std::uint64_t>(std::ceil(*options.epochs * static_cast<double>(plan.steps_per_epoch)));
  plan.resumed_from = step;
  plan.last_step = plan.steps;
  if (options.steps_this_run) plan.last_step = std::min(plan.steps, step + *options.steps_this_run);
  plan.parameters = model.model->config().ParameterCount();
  plan.flops_per_token = opened.shape.FlopsPerToken(options.data.sequence_length);
  if (leads()) {
    plan.memory_bytes = MR_TRY(PlannedMemory(options, opened.shape, layout->options(), ranks));
  }
  plan.checkpoint_url = options.checkpoint.url;
  schedule = options.schedule;
  schedule.total_steps = plan.steps;
  if (options.warmup_proportion > 0) {
    schedule.warmup_steps = engine::WarmupSteps(options.warmup_proportion, plan.steps);
  }
  return {};
}

Status TrainingRun::OpenTracer() {
  if (!options.profile) return {};
  tracer = MR_TRY(StepTracer::Open(connection, group, *options.profile, clock, options.log));
  traced->FollowRecorder(tracer->recorder());
  observers.Add(std::make_unique<TraceObserver>(*tracer, *traced, heartbeat, clock, options.log));
  return {};
}

data::Loader::Options TrainingRun::LoaderOptions() const {
  data::Loader::Options made{.rank = layout->data_rank(),
                             .ranks = layout->data_ranks(),
                             .global_batch = options.global_batch,
                             .micro_batch = options.micro_batch,
                             .threads = options.data.threads};
  if (tracer) made.on_made = tracer->OnMade();
  return made;
}

Status TrainingRun::OpenData() {
  tokenizer = MR_TRY(tokenizer::OpenTokenizer(connection, options.tokenizer_url, options.log));
  const auto open = [&]() -> Status {
    dataset = MR_TRY(data::Dataset::Open(connection, tokenizer, options.data, options.log));
    return {};
  };
  // Rank 0 builds the index where there is none; the others then find it.
  if (leads()) MR_TRY(open());
  MR_TRY(group.Barrier());
  if (!leads()) MR_TRY(open());
  return {};
}

data::DatasetOptions TrainingRun::EvaluatedData() const {
  data::DatasetOptions evaluated = options.data;
  if (options.eval.sources.empty()) {
    evaluated.split.part = data::SplitPart::kHeldOut;
  } else {
    evaluated.sources = options.eval.sources;
    evaluated.split = {};
  }
  return evaluated;
}

Status TrainingRun::OpenModel() {
  opened = MR_TRY(train::OpenModel(connection, group, options, *tokenizer, data_budget, heartbeat, clock));
  layout = MR_TRY(RankLayout::Make(group, MR_TRY(ChooseParallel(group, options, opened.shape))));
  MR_TRY(CheckBatch(*layout, options));
  MR_TRY(CheckModel(opened, options, *tokenizer, *layout));
  if (options.limit_threads && options.device.is_cpu()) {
    const double tokens = static_cast<double>(options.micro_batch) * static_cast<double>(options.data.sequence_length);
    engine::LimitThreads(opened.shape.FlopsPerProduct(tokens) / layout->options().tensor);
  }
  model = MR_TRY(MakeRunModel(opened, *layout, group, options));
  model.model->on_block = [this] { heartbeat.BeatInStep(step, clock); };
  return {};
}

Status TrainingRun::Resume() {
  if (options.checkpoint.url.empty() || options.compile_only) return {};
  const auto on_checkpoint = [this](const Result<checkpoint::SaveStats>& saved) { observers.OnCheckpoint(saved); };
  checkpoints = MR_TRY(Checkpointing::Open(connection, group, options, heartbeat, on_checkpoint));
  if (const auto resumed = MR_TRY(checkpoints->Resume(model.tensors, Identity()))) {
    MR_TRY(TakeState(*resumed));
    data_state = resumed->state.data;
    earlier = {.steps = step, .compile = resumed->state.compile, .compiled = resumed->state.compiled};
  }
  return checkpoints->Prepare(model.tensors);
}

RunIdentity TrainingRun::Identity() const {
  return {.tokenizer_fingerprint = tokenizer->fingerprint(),
          .optimizer = std::string(model.optimizer->name()),
          .model_config = model.model->config().ToJson(),
          .adapter_config = AdapterConfig(opened, options),
          .base_fingerprint = model.base_fingerprint};
}

Status TrainingRun::TakeState(const Checkpointing::Resumed& resumed) {
  model.optimizer->Restore(resumed.state.optimizer_steps);
  step = resumed.state.step;
  quality = resumed.metrics;
  if (model.scales && !resumed.state.fp8.is_null()) MR_TRY(model.scales->Restore(resumed.state.fp8));
  return judge.Restore(resumed.state);
}

Status TrainingRun::ChooseKernels() {
  kernels = MR_TRY(train::ChooseKernels({.connection = connection,
                                         .group = group,
                                         .options = options,
                                         .layout = *layout,
                                         .opened = opened,
                                         .model = model},
                                        earlier, std::bind_front(&TrainingRun::TryStep, this), heartbeat, observers));
  return {};
}

/// Makes the passes of a step, over the samples that the run begins with, and learns nothing from them.
Status TrainingRun::TryStep(const engine::ops::StepKernels& trial_kernels, engine::ops::SeenProducts& seen) {
  const auto trial = MR_TRY(data::Loader::Start(dataset, data_budget, LoaderOptions(), data_state, options.log));
  const engine::ops::KernelScope scope(trial_kernels, &seen);
  StepReport report;
  MR_TRY(StepRunner(*layout, options, opened.shape, *trial, *model.passes, *model.exchange,
                    MicroBatchesOf(options, *layout))
             .Run(step, report));
  return engine::CatchTorch("a trial step", [&] {
    if (options.compile_only) {
      model.optimizer->Step(0, 0);  // nobody needs the weights, and moments are memory once they are written
    } else {
      model.optimizer->Skip();
    }
    if (model.scales) model.scales->Skip();
  });
}

Json TrainingRun::Meta() const {
  RunState state{
      .step = step,
      .optimizer = std::string(model.optimizer->name()),
      .optimizer_steps = model.optimizer->steps(),
      .seed = options.seed,
      .data = loader->state(),
      .model_config = TunedConfig(opened.stored_config, model.model->config(), options.data.classification.classes,
                                  options.precision, *tokenizer),
      .generation_config = TunedGenerationConfig(opened.generation_config, *tokenizer),
      .transposed = opened.lora ? std::vector<std::string>{} : engine::TransposedWeights(model.model->config()),
      .tokenizer_url = options.tokenizer_url,
      .tokenizer_fingerprint = tokenizer->fingerprint(),
      .adapter_config = AdapterConfig(opened, options),
      .base_fingerprint = model.base_fingerprint,
      .base_quantization = options.base_quantization,
      .compile = std::string(CompileName(options.compile)),
      .compiled = kernels.compiled};
  judge.Save(state);
  if (model.scales) state.fp8 = model.scales->ToJson();
  Json meta = state.ToJson();
  if (!options.job.empty()) meta["job"] = options.job;
  return meta;
}

}  // namespace millrace::train
