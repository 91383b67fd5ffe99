#include "millrace/train/trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <span>

#include "millrace/checkpoint/read/reader.h"
#include "millrace/data/loader.h"
#include "millrace/engine/device/choose_device.h"
#include "millrace/engine/errors.h"
#include "millrace/engine/gradients/divided_gradients.h"
#include "millrace/engine/models/lora.h"
#include "millrace/engine/models/make_model.h"
#include "millrace/engine/ops/choice/step_kernels.h"
#include "millrace/engine/pipeline/pipeline_runner.h"
#include "millrace/engine/sharding/data_exchange.h"
#include "millrace/engine/weights/read_weights.h"
#include "millrace/metrics/endpoint.h"
#include "millrace/nvml/nvml.h"
#include "millrace/tokenizer/open/open.h"
#include "millrace/trace/recorder.h"
#include "millrace/train/agreement/same_job.h"
#include "millrace/train/auto_layout.h"
#include "millrace/train/checkpointing.h"
#include "millrace/train/checks.h"
#include "millrace/train/compile/product_json.h"
#include "millrace/train/compile/step_compiler.h"
#include "millrace/train/histograms/parameter_histograms.h"
#include "millrace/train/layout.h"
#include "millrace/train/open_model.h"
#include "millrace/train/reporting/heartbeat.h"
#include "millrace/train/reporting/rank_exchange.h"
#include "millrace/train/reporting/run_recorder.h"
#include "millrace/train/reporting/step_metrics.h"
#include "millrace/train/reporting/stopwatch.h"
#include "millrace/train/reporting/telemetry.h"
#include "millrace/train/state/run_state.h"
#include "millrace/train/state/tuned_config.h"
#include "millrace/train/step_end/delayed_scales.h"
#include "millrace/train/step_end/step_judge.h"
#include "millrace/train/step_runner.h"
#include "millrace/train/tracing/step_tracer.h"
#include "millrace/train/tracing/traced_store.h"

namespace millrace::train {
namespace {

/// One rank's run. Built up in Prepare, then driven by Run; members are destroyed in the reverse order.
class Trainer {
 public:
  Trainer(object::Connection& connection, TracedConnection* traced, engine::Collective& group, const Options& options,
          const Observer& observer)
      : connection_(connection),
        traced_(traced),
        group_(group),
        options_(options),
        observer_(observer),
        clock_(*options.clock),
        data_budget_(options.memory_budget),
        judge_(options.spikes, options.loss_scale) {}

  Status Prepare();
  Result<Outcome> Run(std::stop_token stop);
  /// Returns how a run ended that had to leave its checkpoints to another run; nothing: it did not. The same on all
  /// ranks.
  std::optional<Outcome> Lost() const {
    const auto why = checkpoints_ ? checkpoints_->lost() : std::nullopt;
    return why ? std::optional(Outcome{.step = step_, .steps = plan_.steps, .lost = why}) : std::nullopt;
  }
  /// Tells the ranks that wait for this one why it fails. Without it, they would learn only that it has left.
  void Abort(const Error& cause) {
    if (layout_) layout_->Abort(cause);
    if (!layout_) group_.Abort(cause);
  }

 private:
  /// Of a step, over all ranks.
  struct Sums {
    PassSums passes;
    bool stop = false;
    SaversBusy busy;
    bool lost = false;  ///< Checkpointing::lost() on any rank
  };

  bool leads() const { return group_.rank() == 0; }
  /// Returns how many a rank has in a step.
  int MicroBatches() const { return options_.global_batch / (layout_->data_ranks() * options_.micro_batch); }
  Status OpenData();
  data::DatasetOptions EvaluatedData() const;
  Status OpenModel();
  Status MakeModel();
  Status Resume();
  RunIdentity Identity() const;
  Status TakeState(const Checkpointing::Resumed& resumed);
  Status ChooseKernels();
  Status TryStep(const engine::ops::StepKernels& kernels, engine::ops::SeenProducts& seen);
  data::Loader::Options LoaderOptions() const;
  Status OpenTelemetry();
  Status OpenMetrics();
  Status AddHistograms(std::uint64_t step, double scale);
  Status Record(const StepReport& report);
  Status MakePlan();

  Status RunStep(std::stop_token stop, Outcome& outcome);
  void TellLine(const StepReport& line);
  Status WriteTrace();
  Result<StepReport> Step(bool stop_here, Sums& all);
  double LossFactor() const;
  Status EndSpike(StepReport& report);
  Status LeaveOut();
  Result<Sums> SumOverRanks(const Sums& mine, StepReport& report);
  Result<std::optional<EvalReport>> EvaluateIfDue(bool last);
  Json Meta() const;

  object::Connection& connection_;
  TracedConnection* const traced_;  ///< with options_.profile: `connection_`
  engine::Collective& group_;       ///< of all ranks
  std::unique_ptr<RankLayout> layout_;
  const Options& options_;
  const Observer& observer_;
  Clock& clock_;
  MemoryBudget data_budget_;
  Heartbeat heartbeat_;
  NetworkFigures network_;
  std::unique_ptr<StepTracer> tracer_;  ///< with options_.profile; goes after what it records

  std::shared_ptr<const tokenizer::Tokenizer> tokenizer_;
  std::shared_ptr<data::Dataset> dataset_;
  OpenedModel opened_;
  std::string base_fingerprint_;  ///< with opened_.lora
  std::unique_ptr<engine::Model> model_;
  std::unique_ptr<engine::Optimizer> optimizer_;
  std::unique_ptr<engine::DataExchange> exchange_;  ///< goes before the model and its groups
  std::unique_ptr<engine::PipelineRunner> passes_;
  std::vector<StateTensor> tensors_;
  std::string compile_before_ = "auto";           ///< how the checkpoint's run computed: RunState
  std::optional<CompiledEntry> compiled_before_;  ///< likewise
  std::optional<CompiledEntry> compiled_;         ///< with Compile::kOn
  std::unique_ptr<DelayedScales> scales_;         ///< null, except with delayed scaling in FP8
  engine::ops::StepKernels kernels_;
  StepJudge judge_;
  engine::Schedule schedule_;
  Plan plan_;
  double flops_of_products_ = 0, flops_per_position_ = 0;  ///< of a trained token
  std::uint64_t step_ = 0;                                 ///< steps done
  data::LoaderState data_state_;
  std::map<std::string, double> quality_;  ///< of the step that is done
  StepInterval interval_;                  ///< since the last line of figures
  std::unique_ptr<data::Loader> loader_;
  std::unique_ptr<StepRunner> steps_;
  std::unique_ptr<RunRecorder> recorder_;  ///< of rank 0; this and the next go after `checkpoints_`, which tell them
  std::unique_ptr<StepMetrics> metrics_;   ///< likewise
  std::unique_ptr<Checkpointing> checkpoints_;  ///< null: none are made
  std::unique_ptr<Evaluator> evaluator_;
  std::optional<RankExchange> rank_exchange_;
  std::unique_ptr<Telemetry> telemetry_;
  std::optional<ParameterHistograms> histograms_;  ///< with options_.histograms_every
  std::unique_ptr<http::Server> metrics_server_;   ///< goes before what it tells
};

Status Trainer::Prepare() {
  heartbeat_ = MR_TRY(Heartbeat::Open(options_.heartbeat_file));
  MR_TRY(CheckSameJob(group_, options_.job));  // else ranks would wait for each other in vain, or learn apart
  MR_TRY(CheckDevices(group_, options_));
  network_ = MR_TRY(CheckNetwork(group_, options_, heartbeat_));
  MR_TRY(OpenData());
  MR_TRY(OpenModel());
  MR_TRY(Resume());
  exchange_->ShareValues(engine::ChangedValues::kAll);  // ranks read what they own
  MR_TRY(ChooseKernels());
  if (options_.compile_only) return {};
  MR_TRY(OpenTelemetry());
  if (options_.profile) {
    tracer_ = MR_TRY(StepTracer::Open(connection_, group_, *options_.profile, clock_, options_.log));
    traced_->FollowRecorder(tracer_->recorder());
  }
  loader_ = MR_TRY(data::Loader::Start(dataset_, data_budget_, LoaderOptions(), data_state_, options_.log));
  steps_ =
      std::make_unique<StepRunner>(*layout_, options_, opened_.shape, *loader_, *passes_, *exchange_, MicroBatches());
  MR_TRY(MakePlan());
  if (options_.eval_every > 0) {
    evaluator_ = MR_TRY(Evaluator::Open(connection_, tokenizer_, EvaluatedData(), options_.dpo, options_.eval_samples,
                                        options_.device, *layout_, options_.log));
  }
  return OpenMetrics();
}

data::Loader::Options Trainer::LoaderOptions() const {
  data::Loader::Options loader{.rank = layout_->data_rank(),
                               .ranks = layout_->data_ranks(),
                               .global_batch = options_.global_batch,
                               .micro_batch = options_.micro_batch,
                               .threads = options_.data.threads};
  if (tracer_) loader.on_made = tracer_->OnMade();
  return loader;
}

Status Trainer::OpenData() {
  tokenizer_ = MR_TRY(tokenizer::OpenTokenizer(connection_, options_.tokenizer_url, options_.log));
  const auto open = [&]() -> Status {
    dataset_ = MR_TRY(data::Dataset::Open(connection_, tokenizer_, options_.data, options_.log));
    return {};
  };
  // Rank 0 builds the index where there is none; the others then find it.
  if (leads()) MR_TRY(open());
  MR_TRY(group_.Barrier());
  if (!leads()) MR_TRY(open());
  return {};
}

data::DatasetOptions Trainer::EvaluatedData() const {
  data::DatasetOptions evaluated = options_.data;
  if (options_.eval_sources.empty()) {
    evaluated.split.part = data::SplitPart::kHeldOut;
  } else {
    evaluated.sources = options_.eval_sources;
    evaluated.split = {};
  }
  return evaluated;
}

Status Trainer::OpenModel() {
  opened_ = MR_TRY(train::OpenModel(connection_, group_, options_, *tokenizer_, data_budget_, heartbeat_, clock_));
  layout_ = MR_TRY(RankLayout::Make(group_, MR_TRY(ChooseParallel(group_, options_, opened_.shape))));
  MR_TRY(CheckBatch(*layout_, options_));
  MR_TRY(CheckModel(opened_, options_, *tokenizer_, *layout_));
  MR_TRY(MakeModel());
  const engine::ParallelOptions& parallel = layout_->options();
  if (options_.fp8 == engine::ops::Fp8Scaling::kDelayed) {
    scales_ = MR_TRY(DelayedScales::Make(group_, LayerNames(*model_), options_.device));
  }
  exchange_ = std::make_unique<engine::DataExchange>(
      model_->buffer(), layout_->state(),
      engine::DataExchangeOptions{
          .reshard = parallel.reshard, .reduce_in_bf16 = parallel.reduce_in_bf16, .overlap = parallel.overlap});
  const engine::PipelineOptions pipeline{
      .schedule = parallel.schedule, .virtual_stages = parallel.virtual_stages, .micro_batches = MicroBatches()};
  passes_ = std::make_unique<engine::PipelineRunner>(*model_, layout_->pipeline(), pipeline, clock_);
  tensors_ = StateTensors(*model_, *optimizer_, opened_.lora ? Kept::kAdapter : Kept::kModel);
  return {};
}

/// Makes this rank's share of the model, with the weights of what was opened, and its optimizer.
Status Trainer::MakeModel() {
  const std::optional<engine::LoraOptions>& lora = opened_.lora;
  engine::ModelShare share = layout_->ShareOf(*opened_.config, options_.data.sequence_length);
  share.freeze = options_.freeze;
  share.lora = lora;
  share.quantized = opened_.quantized;
  // The head of a model that does not generate may be missing in the weights. Then it begins at random.
  if (opened_.weights && opened_.config->generates()) share.initial_values = engine::InitialValues::kAdapters;
  model_ =
      MR_TRY(engine::MakeModel(opened_.config, options_.precision, options_.device, options_.seed, std::move(share)));
  MR_TRY(engine::CheckGlobs("train.freeze", model_->buffer(), options_.freeze, layout_->state()));
  model_->on_block = [this] { heartbeat_.BeatInStep(step_, clock_); };
  const engine::ParallelOptions& parallel = layout_->options();
  model_->SetRecompute(parallel.recompute, parallel.recompute_every, parallel.offload_activations);
  if (opened_.weights) {
    std::vector<std::string> absent;
    MR_TRY(engine::ReadWeights(opened_.weights->reader(), *model_, opened_.config->generates() ? nullptr : &absent));
    for (const std::string& name : absent) {
      options_.log.Warning("the model.from has no such weight; it begins at random", {{"weight", name}});
    }
    MR_TRY(group_.Barrier());  // rank 0 may hold the checkpoint for all
    opened_.weights.reset();
  }
  if (lora) {
    MR_TRY(engine::CheckTargets("lora.targets", model_->buffer(), lora->targets, layout_->state()));
    const std::uint64_t frozen = MR_TRY(engine::FrozenFingerprint(model_->buffer(), layout_->state()));
    base_fingerprint_ =
        fmt::format("{:016x}", frozen + (opened_.quantized ? engine::Fingerprint(*opened_.quantized) : 0));
  }
  if (opened_.adapter) {
    MR_TRY(engine::ReadAdapter(opened_.adapter->reader(), *model_));
    MR_TRY(group_.Barrier());
    opened_.adapter.reset();
  } else if (lora) {
    MR_TRY(engine::InitializeMagnitudes(model_->buffer(), opened_.quantized.get(), layout_->state()));
  }
  auto optimizer = MR_TRY(engine::CatchTorch("allocating gradients and optimizer state", [&] {
    model_->buffer().EnableGradients();
    return engine::MakeOptimizer(model_->buffer(), options_.optimizer, layout_->state());
  }));
  optimizer_ = MR_TRY(std::move(optimizer));
  return {};
}

Status Trainer::Resume() {
  if (options_.checkpoint_url.empty() || options_.compile_only) return {};
  const auto on_checkpoint = [this](const Result<checkpoint::SaveStats>& saved) {
    if (recorder_) recorder_->AddCheckpoint(saved);
    if (metrics_) metrics_->AddCheckpoint(saved);
    if (tracer_) tracer_->NoteCheckpoint(saved);
    if (observer_.on_checkpoint) observer_.on_checkpoint(saved);
  };
  checkpoints_ = MR_TRY(Checkpointing::Open(connection_, group_, options_, heartbeat_, on_checkpoint));
  if (const auto resumed = MR_TRY(checkpoints_->Resume(tensors_, Identity()))) {
    MR_TRY(TakeState(*resumed));
    data_state_ = resumed->state.data;
    compile_before_ = resumed->state.compile;
    compiled_before_ = resumed->state.compiled;
  }
  return checkpoints_->Prepare(tensors_);
}

RunIdentity Trainer::Identity() const {
  return {.tokenizer_fingerprint = tokenizer_->fingerprint(),
          .optimizer = std::string(optimizer_->name()),
          .adapter_config = AdapterConfig(opened_, options_),
          .base_fingerprint = base_fingerprint_};
}

Status Trainer::TakeState(const Checkpointing::Resumed& resumed) {
  optimizer_->Restore(resumed.state.optimizer_steps);
  step_ = resumed.state.step;
  quality_ = resumed.metrics;
  if (scales_ && !resumed.state.fp8.is_null()) MR_TRY(scales_->Restore(resumed.state.fp8));
  return judge_.Restore(resumed.state);
}

/// Decides how the passes are computed. Says so if a resumed run may not compute the same bits.
Status Trainer::ChooseKernels() {
  kernels_.plain = options_.compile == Compile::kOff;
  kernels_.fp8 = options_.fp8;
  if (scales_) kernels_.largest = &scales_->values();
  MR_TRY(CheckPlain(*layout_, options_));
  if (options_.compile == Compile::kOn) {
    const KeepBeating beating(heartbeat_, std::nullopt, clock_);
    const Json made_for = CompiledFor(
        {.model = model_->config().ToJson(),
         .precision = engine::PrecisionName(PrecisionOf(options_)),
         .objective = data::ObjectiveName(options_.data.objective),
         .micro_batch = options_.micro_batch,
         .sequence_length = options_.data.sequence_length,
         .parallel = layout_->options(),
         .shape = layout_->mesh().shape(),
         .adapter = AdapterConfig(opened_, options_),
         .base = options_.base_quantization ? QuantizationName(*options_.base_quantization) : std::string_view(),
         .device = options_.device,
         .fp8_scaling = engine::ops::Fp8ScalingName(options_.fp8)});
    CompileReport report = MR_TRY(CompileStep(
        connection_, group_, options_.compile_cache, made_for, compiled_before_,
        [this](engine::ops::StepKernels kernels, engine::ops::SeenProducts& seen) {
          kernels.fp8 = kernels_.fp8;
          kernels.largest = kernels_.largest;
          return TryStep(kernels, seen);
        },
        options_.device, clock_, options_.log));
    compiled_ = report.entry;
    MR_TRY(TakeChoices(compiled_->products, kernels_));
    if (options_.compile_only) {
      engine::ops::SeenProducts seen;
      MR_TRY(TryStep(kernels_, seen));
      report.peak_memory = MR_TRY(PeakMemory(group_, options_.device));
    }
    if (leads() && observer_.on_compiled) observer_.on_compiled(report);
  }
  const std::string_view mode = CompileName(options_.compile);
  if (leads() && step_ > 0 && (mode != compile_before_ || compiled_ != compiled_before_)) {
    const std::string changed =
        compiled_ && compiled_before_ ? ChangedKeys(*compiled_before_, *compiled_) : "train.compile";
    options_.log.Warning("the checkpoint's run computed its steps in another way: losses may differ in their last bits",
                         {{"train.compile", mode}, {"before", compile_before_}, {"changed", changed}});
  }
  return {};
}

/// Makes the passes of a step, over the samples that the run begins with, and learns nothing from them.
Status Trainer::TryStep(const engine::ops::StepKernels& kernels, engine::ops::SeenProducts& seen) {
  const auto loader = MR_TRY(data::Loader::Start(dataset_, data_budget_, LoaderOptions(), data_state_, options_.log));
  const engine::ops::KernelScope scope(kernels, &seen);
  StepReport report;
  MR_TRY(
      StepRunner(*layout_, options_, opened_.shape, *loader, *passes_, *exchange_, MicroBatches()).Run(step_, report));
  return engine::CatchTorch("a trial step", [&] {
    if (options_.compile_only) {
      optimizer_->Step(0, 0);  // nobody needs the weights, and moments are memory once they are written
    } else {
      optimizer_->Skip();
    }
    if (scales_) scales_->Skip();
  });
}

Status Trainer::OpenTelemetry() {
  if (options_.tensorboard_url.empty()) return {};
  if (options_.histograms_every > 0) {
    histograms_ = MR_TRY(ParameterHistograms::Make(group_, model_->buffer(), layout_->state()));
  }
  if (!leads()) return {};
  auto writer = MR_TRY(
      metrics::EventWriter::Open(connection_, options_.tensorboard_url, {.suffix = options_.name + ".rank0"}, clock_));
  const Telemetry::Run run = {.name = options_.name, .job = options_.shown_job, .parameters = options_.hyperparameters};
  telemetry_ = std::make_unique<Telemetry>(std::move(writer), run, clock_, options_.log);
  return {};
}

/// Shows the weights before the update of a step, and its gradients times `scale`.
Status Trainer::AddHistograms(std::uint64_t step, double scale) {
  const trace::Span span("histograms", trace::Category::kOptimizer);
  std::vector<ParameterHistogram> histograms = MR_TRY(histograms_->Collect(scale));
  if (telemetry_) telemetry_->AddHistograms(step, std::move(histograms));
  return {};
}

Status Trainer::OpenMetrics() {
  RankPlace place{.stage = layout_->pipeline_rank(), .device = options_.device};
  if (!options_.device.is_cpu()) {
    place.gpu = nvml::GpuMeter::Open(nvml::kLibrary, engine::DevicePciBusId(options_.device));
  }
  rank_exchange_ = MR_TRY(RankExchange::Make(group_, options_.rank_interval, place, clock_));
  if (!leads()) return {};
  if (options_.history_file.empty() && options_.metrics_listen.empty()) return {};
  const double flops_rate = MR_TRY(PromisedRate(options_, group_.size()));
  recorder_ = std::make_unique<RunRecorder>(options_.history_file, plan_, flops_rate, clock_, options_.log);
  if (options_.metrics_listen.empty()) return {};
  metrics_ = std::make_unique<StepMetrics>(plan_, flops_rate);
  metrics_->SetNetwork(network_);
  metrics_server_ = MR_TRY(metrics::ServeMetrics(
      {.listen = options_.metrics_listen,
       .access = options_.metrics_access,
       .how = "log.metrics_key_file, or log.metrics_insecure: true",
       .log = options_.log},
      {{"/metrics", [this] { return metrics_->PrometheusText() + LoggedMetricsText(options_.history_file); }},
       {"/history", [this] { return recorder_->ToJson(); }}}));
  return {};
}

/// Takes a step into metrics and history, with the figures of all ranks when they are due.
Status Trainer::Record(const StepReport& report) {
  if (telemetry_) telemetry_->Add(report);
  if (metrics_) metrics_->Add(report);
  if (recorder_) recorder_->AddStep(report);
  auto ranks = MR_TRY(rank_exchange_->AfterStep(report));
  if (!ranks || !recorder_) return {};
  recorder_->SetRanks(*ranks, rank_exchange_->gathered_steps());
  if (metrics_) metrics_->SetRanks(*ranks);
  return {};
}

Status Trainer::MakePlan() {
  const engine::ModelConfig& config = model_->config();
  const std::uint64_t per_epoch = loader_->batches_per_epoch();
  plan_.name = options_.name;
  plan_.precision = engine::PrecisionName(PrecisionOf(options_));
  plan_.device = options_.device.str();
  plan_.ranks = group_.size();
  plan_.parallel = layout_->options();
  plan_.shape = layout_->mesh().shape();
  plan_.global_batch = options_.global_batch;
  plan_.micro_batch = options_.micro_batch;
  plan_.sequence_length = options_.data.sequence_length;
  plan_.accumulation = static_cast<std::uint64_t>(MicroBatches());
  plan_.records = dataset_->records();
  plan_.data_bytes = dataset_->bytes();
  plan_.samples_per_epoch = dataset_->samples_per_epoch();
  plan_.tokens_per_epoch = dataset_->tokens_per_epoch();
  plan_.steps_per_epoch = per_epoch;
  plan_.steps = options_.steps
                    ? *options_.steps
                    : static_cast<std::uint64_t>(std::ceil(*options_.epochs * static_cast<double>(per_epoch)));
  plan_.resumed_from = step_;
  plan_.last_step = plan_.steps;
  if (options_.steps_this_run) plan_.last_step = std::min(plan_.steps, step_ + *options_.steps_this_run);
  plan_.parameters = config.ParameterCount();
  // FLOPs are linear in what attention spans; a shape counts its layers for each answer.
  flops_of_products_ = opened_.shape.FlopsPerToken(0);
  flops_per_position_ = opened_.shape.FlopsPerToken(1) - flops_of_products_;
  plan_.flops_per_token = opened_.shape.FlopsPerToken(options_.data.sequence_length);
  // Rank 0 tells the plan, and its machine has the file that describes the machines.
  if (leads()) plan_.memory_bytes = MR_TRY(PlannedMemory(options_, opened_.shape, layout_->options(), group_.size()));
  plan_.checkpoint_url = options_.checkpoint_url;
  schedule_ = options_.schedule;
  schedule_.total_steps = plan_.steps;
  if (options_.warmup_proportion > 0) {
    schedule_.warmup_steps = engine::WarmupSteps(options_.warmup_proportion, plan_.steps);
  }
  return {};
}

Json Trainer::Meta() const {
  RunState state{.step = step_,
                 .optimizer = std::string(optimizer_->name()),
                 .optimizer_steps = optimizer_->steps(),
                 .seed = options_.seed,
                 .data = loader_->state(),
                 .model_config = TunedConfig(opened_.stored_config, model_->config(),
                                             options_.data.classification.classes, options_.precision, *tokenizer_),
                 .generation_config = TunedGenerationConfig(opened_.generation_config, *tokenizer_),
                 .transposed = opened_.lora ? std::vector<std::string>{} : engine::TransposedWeights(model_->config()),
                 .tokenizer_url = options_.tokenizer_url,
                 .tokenizer_fingerprint = tokenizer_->fingerprint(),
                 .adapter_config = AdapterConfig(opened_, options_),
                 .base_fingerprint = base_fingerprint_,
                 .base_quantization = options_.base_quantization,
                 .compile = std::string(CompileName(options_.compile)),
                 .compiled = compiled_};
  judge_.Save(state);
  if (scales_) state.fp8 = scales_->ToJson();
  Json meta = state.ToJson();
  if (!options_.job.empty()) meta["job"] = options_.job;
  return meta;
}

Result<Outcome> Trainer::Run(std::stop_token stop) {
  if (options_.compile_only) return Outcome{.step = step_, .steps = step_};
  const engine::ops::KernelScope scope(kernels_);
  if (leads() && observer_.on_plan) observer_.on_plan(plan_);
  Outcome outcome{.step = step_, .steps = plan_.steps};
  if (checkpoints_ && step_ >= plan_.steps) MR_TRY(checkpoints_->CheckComplete());
  while (step_ < plan_.last_step && !outcome.stopped) {
    if (tracer_) tracer_->BeforeStep(step_ + 1);
    MR_TRY(RunStep(stop, outcome));
    if (tracer_ && tracer_->IsDue(step_, outcome.stopped || step_ >= plan_.last_step)) MR_TRY(WriteTrace());
  }
  outcome.stopped = outcome.stopped && step_ < plan_.last_step;
  if (telemetry_ && step_ == plan_.steps) telemetry_->NoteEnd();
  if (!checkpoints_) return outcome;
  // A finished run whose last checkpoint never left the local disk has this one thing to do.
  if (step_ == plan_.steps) checkpoints_->SaveFinished(step_, quality_, [this] { return Meta(); });
  MR_TRY(checkpoints_->Finish(step_));
  return outcome;
}

/// Makes a step, with the evaluation and the checkpoint that are due after it, and reports it.
Status Trainer::RunStep(std::stop_token stop, Outcome& outcome) {
  const trace::ThreadScope tracing(tracer_ ? &tracer_->recorder() : nullptr);
  trace::Span span("step", trace::Category::kStep);
  if (span) span.SetArguments({{"step", step_ + 1}});
  const Stopwatch whole(clock_);
  Sums all;
  StepReport report = MR_TRY(Step(stop.stop_requested(), all));
  outcome.stopped = all.stop;
  // A step that is not learnt from leaves the weights, and how good they are, as they were.
  if (!report.spike && !report.overflow) quality_ = {{"loss", report.loss}};
  const bool last = step_ >= plan_.last_step || outcome.stopped;
  std::optional<EvalReport> evaluated;
  if (!outcome.stopped && !report.went_back) evaluated = MR_TRY(EvaluateIfDue(last));
  if (evaluated) report.evaluated = evaluated->Metrics();
  for (const auto& [name, value] : report.evaluated) quality_["eval_" + name] = value;
  if (checkpoints_) {
    const trace::Span saving("save", trace::Category::kCheckpoint);
    const SavePoint point{.step = step_, .last = last, .metrics = quality_, .busy = all.busy};
    report.checkpoint_wait_s += checkpoints_->SaveIfDue(point, [this] { return Meta(); });
  }
  report.step_s = whole.Seconds() - (evaluated ? evaluated->seconds : 0);
  outcome.step = step_;
  outcome.loss = report.loss;
  MR_TRY(heartbeat_.Beat(step_));
  MR_TRY(Record(report));
  interval_.Add(report);
  if (last || step_ % options_.log_every == 0) TellLine(interval_.Take());
  if (recorder_ && evaluated) recorder_->AddEvaluation(step_, report.evaluated);
  if (leads() && observer_.on_eval && evaluated) observer_.on_eval(*evaluated);
  return {};
}

/// Tells the figures of a step, with its speed and waits as means since the last line.
void Trainer::TellLine(const StepReport& line) {
  if (telemetry_) telemetry_->AddSpeed(line);
  if (metrics_) metrics_->SetSpeed(line);
  if (leads() && observer_.on_step) observer_.on_step(line);
}

Status Trainer::WriteTrace() {
  const KeepBeating beating(heartbeat_, step_, clock_);
  return tracer_->Write(traced_->spans());
}

Result<std::optional<EvalReport>> Trainer::EvaluateIfDue(bool last) {
  if (!evaluator_ || (!last && step_ % options_.eval_every != 0)) return std::nullopt;
  const trace::Span span("evaluation", trace::Category::kPass);
  const KeepBeating beating(heartbeat_, step_, clock_);
  const Stopwatch evaluating(clock_);
  EvalReport report = MR_TRY(evaluator_->Evaluate(*passes_));
  report.step = step_;
  report.seconds = evaluating.Seconds();
  // Rewards tell more of pairs.
  const bool compares = options_.data.objective == data::Objective::kDpo;
  report.tells_perplexity = options_.eval_perplexity && !compares;
  report.tells_accuracy = options_.eval_accuracy && !compares;
  return report;
}

Result<StepReport> Trainer::Step(bool stop_here, Sums& all) {
  StepReport report{.step = step_ + 1, .lr = schedule_.At(step_)};
  report.tokens = static_cast<std::uint64_t>(options_.global_batch) * static_cast<std::uint64_t>(plan_.sequence_length);
  report.loss_scale = judge_.loss_scale();
  const double loss_factor = LossFactor();
  Sums mine{.passes = MR_TRY(steps_->Run(step_, report, loss_factor)), .stop = stop_here};
  if (checkpoints_) {
    mine.busy = checkpoints_->busy();
    mine.lost = checkpoints_->lost().has_value();
  }
  all = MR_TRY(SumOverRanks(mine, report));
  if (all.lost) return Fail(checkpoints_->AwaitLost(step_));
  const std::uint64_t labels = all.passes.labels.denominator();
  if (labels == 0) return Fail(Code::kInvalidArgument, "step {}: no label of the batch counts", report.step);

  const double context = all.passes.context / static_cast<double>(report.tokens);
  report.flops_per_token = flops_of_products_ + flops_per_position_ * context;

  // Gradients are of the sum of all losses; one factor makes them the mean's and clips them.
  const double scale = 1 / (static_cast<double>(labels) * loss_factor);
  report.loss = all.passes.loss / static_cast<double>(labels);
  if (options_.data.objective == data::Objective::kDpo) report.preferences = all.passes.preferences.Means();
  report.grad_norm = MR_TRY(engine::CatchTorch("gradient norm", [&] {
    const trace::Span span("gradient norm", trace::Category::kOptimizer);
    return engine::GradientNorm(model_->buffer(), scale, layout_->state());
  }));
  switch (MR_TRY(judge_.Judge(report))) {
    case StepJudge::Verdict::kLearn:
      break;
    case StepJudge::Verdict::kLeaveOut:
      MR_TRY(LeaveOut());
      MR_TRY(judge_.CheckLossScale(report.step));
      return report;
    case StepJudge::Verdict::kSpike:
      MR_TRY(EndSpike(report));
      return report;
  }
  if (scales_) MR_TRY(scales_->EndStep());
  if (histograms_ && report.step % options_.histograms_every == 0) MR_TRY(AddHistograms(report.step, scale));
  // What is being saved of the step before is copied beside the passes above; now it will change.
  if (checkpoints_) {
    const trace::Span span("wait for the copy", trace::Category::kCheckpoint);
    report.checkpoint_wait_s += SecondsOf(checkpoints_->WaitCopied());
  }
  MR_TRY(engine::CatchTorch("optimizer step", [&] {
    const trace::Span span("optimizer", trace::Category::kOptimizer);
    optimizer_->Step(report.lr, scale * engine::ClipScale(report.grad_norm, options_.clip_norm));
  }));
  exchange_->ShareValues(engine::ChangedValues::kTrained);
  ++step_;
  return report;
}

/// Returns the factor of the loss in the backward passes: the loss scale of a mean over the batch, as in other
/// programs. The labels of the step are not known before its passes, so it is the mean over as many as there can be.
double Trainer::LossFactor() const {
  const std::optional<double> loss_scale = judge_.loss_scale();
  if (!loss_scale) return 1;
  const double of_row = options_.data.LearnsTokens() ? options_.data.sequence_length : 1;
  return *loss_scale / (of_row * options_.global_batch);
}

/// Ends a step without a change of the weights.
Status Trainer::LeaveOut() {
  MR_TRY(engine::CatchTorch("skipping a step", [&] { optimizer_->Skip(); }));
  if (scales_) scales_->Skip();
  ++step_;
  return {};
}

/// Ends a step whose loss or gradient jumped. All ranks have the same loss and norm, so they all come here.
Status Trainer::EndSpike(StepReport& report) {
  if (leads()) {
    options_.log.Warning("the loss or the gradient jumped; this step is not learnt from",
                         {{"step", report.step}, {"loss", report.loss}, {"grad_norm", report.grad_norm}});
  }
  MR_TRY(LeaveOut());
  std::optional<Checkpointing::Resumed> resumed;
  if (options_.spikes.action == SpikeOptions::Action::kRollBack && checkpoints_) {
    resumed = MR_TRY(checkpoints_->GoBack(step_, tensors_, Identity()));
  }
  if (!resumed) return judge_.NoteLeftOut(step_);  // there may be no checkpoint yet
  // The loader stands behind the samples since that checkpoint, so that others follow.
  MR_TRY(TakeState(*resumed));
  exchange_->ShareValues(engine::ChangedValues::kAll);
  report.went_back = step_;
  return judge_.NoteWentBack(step_);
}

Result<Trainer::Sums> Trainer::SumOverRanks(const Sums& mine, StepReport& report) {
  const trace::Span span("sum the losses", trace::Category::kCommunication);
  const Stopwatch waiting(clock_);
  const PassSums& passes = mine.passes;
  std::vector<double> numbers = {passes.loss,
                                 static_cast<double>(passes.labels.tokens),
                                 static_cast<double>(passes.labels.rows),
                                 passes.context,
                                 mine.stop ? 1.0 : 0.0,
                                 mine.busy.store ? 1.0 : 0.0,
                                 mine.busy.local ? 1.0 : 0.0,
                                 mine.lost ? 1.0 : 0.0};
  const std::size_t preferences = numbers.size();
  const bool compares = options_.data.objective == data::Objective::kDpo;
  if (compares) std::ranges::copy(passes.preferences.of, std::back_inserter(numbers));
  const at::Tensor sums = at::tensor(numbers, at::kDouble);
  MR_TRY(group_.AllReduce(sums));
  report.comm_wait_s += waiting.Seconds();
  const std::span<const double> all(sums.data_ptr<double>(), numbers.size());
  Sums total{.passes = {.loss = all[0],
                        .labels = {static_cast<std::uint64_t>(all[1]), static_cast<std::uint64_t>(all[2])},
                        .context = all[3]},
             .stop = all[4] > 0,
             .busy = {.store = all[5] > 0, .local = all[6] > 0},
             .lost = all[7] > 0};
  if (compares) total.passes.preferences.Add(all.subspan(preferences));
  return total;
}

}  // namespace

Result<Outcome> Train(object::Connection& connection, engine::Collective& group, const Options& options,
                      const Observer& observer, std::stop_token stop) {
  MR_TRY(CheckOptions(options));
  std::optional<TracedConnection> traced;
  if (options.profile) traced.emplace(connection);
  Trainer trainer(traced ? *traced : connection, traced ? &*traced : nullptr, group, options, observer);
  const Status prepared = trainer.Prepare();
  Result<Outcome> outcome = prepared ? trainer.Run(stop) : Fail(prepared.error());
  if (outcome) return outcome;
  if (auto lost = trainer.Lost()) return *std::move(lost);
  trainer.Abort(outcome.error());
  return Fail(WithAdviceOnMemory(outcome.error(), options));
}

}  // namespace millrace::train
