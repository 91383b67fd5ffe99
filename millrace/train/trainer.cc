#include "millrace/train/trainer.h"

#include <cmath>

#include "millrace/checkpoint/read/model_source.h"
#include "millrace/checkpoint/read/reader.h"
#include "millrace/data/loader.h"
#include "millrace/engine/errors.h"
#include "millrace/engine/families/families.h"
#include "millrace/engine/gradients/divided_gradients.h"
#include "millrace/engine/models/make_model.h"
#include "millrace/engine/sharding/data_exchange.h"
#include "millrace/engine/weights/read_weights.h"
#include "millrace/metrics/endpoint.h"
#include "millrace/tokenizer/open/open.h"
#include "millrace/train/checkpointing.h"
#include "millrace/train/heartbeat.h"
#include "millrace/train/layout.h"
#include "millrace/train/state.h"
#include "millrace/train/step_metrics.h"
#include "millrace/train/stopwatch.h"
#include "millrace/train/telemetry.h"

namespace millrace::train {
namespace {

/// Summed over a batch's tokens: the length of the row, or of the document in it, that a token attends within.
double ContextOf(const data::Batch& batch) {
  double sum = 0;
  const double row = batch.sequence_length;
  if (batch.cu_seqlens.empty()) sum = batch.rows * row * row;
  for (std::size_t i = 1; i < batch.cu_seqlens.size(); ++i) {
    const double document = batch.cu_seqlens[i] - batch.cu_seqlens[i - 1];
    sum += document * document;
  }
  return sum;
}

/// One rank's run. Built up in Prepare, then driven by Run; members are destroyed in the reverse order.
class Trainer {
 public:
  Trainer(object::Connection& connection, engine::Collective& group, const Options& options, const Observer& observer)
      : connection_(connection),
        group_(group),
        options_(options),
        observer_(observer),
        clock_(*options.clock),
        data_budget_(options.memory_budget) {}

  Status Prepare();
  Result<Outcome> Run(std::stop_token stop);

 private:
  struct Sums {
    double loss = 0;
    std::uint64_t tokens = 0;  ///< labels that count
    double context = 0;        ///< summed over all tokens: the length of the document that each attends within
    bool stop = false;
    SaversBusy busy;  ///< a checkpoint there would have to wait
  };

  bool leads() const { return group_.rank() == 0; }
  Status CheckBatch() const;
  Status OpenData();
  Result<checkpoint::ModelSource> OpenSource();
  Status OpenModel();
  Status Resume();
  Status OpenTelemetry();
  Status OpenMetrics();
  void MakePlan();

  Result<StepReport> Step(bool stop_here, Sums& all);
  Result<Sums> ForwardBackward(StepReport& report);
  Result<Sums> SumOverRanks(Sums mine, StepReport& report);
  Result<std::optional<EvalReport>> EvaluateIfDue(bool last);
  Json Meta() const;

  object::Connection& connection_;
  engine::Collective& group_;  ///< of all ranks
  std::unique_ptr<RankLayout> layout_;
  const Options& options_;
  const Observer& observer_;
  Clock& clock_;
  MemoryBudget data_budget_;
  Heartbeat heartbeat_;

  std::shared_ptr<const tokenizer::Tokenizer> tokenizer_;
  std::shared_ptr<data::Dataset> dataset_;
  std::unique_ptr<engine::Model> model_;
  std::unique_ptr<engine::Optimizer> optimizer_;
  engine::StateRanks state_ranks_;
  std::unique_ptr<engine::DataExchange> exchange_;
  std::vector<StateTensor> tensors_;
  engine::Schedule schedule_;
  Plan plan_;
  double flops_of_products_ = 0, flops_per_position_ = 0;  ///< of a trained token
  std::uint64_t step_ = 0;                                 ///< steps done
  data::LoaderState data_state_;
  std::map<std::string, double> quality_;  ///< of the step that is done
  std::unique_ptr<data::Loader> loader_;
  std::unique_ptr<Checkpointing> checkpoints_;  ///< null: none are made
  std::unique_ptr<Evaluator> evaluator_;
  std::unique_ptr<Telemetry> telemetry_;
  std::unique_ptr<StepMetrics> metrics_;
  std::unique_ptr<http::Server> metrics_server_;  ///< goes before what it tells
};

Status Trainer::Prepare() {
  heartbeat_ = MR_TRY(Heartbeat::Open(options_.heartbeat_file));
  layout_ = MR_TRY(RankLayout::Make(group_, options_.parallel));
  MR_TRY(CheckBatch());
  MR_TRY(OpenData());
  MR_TRY(OpenModel());
  MR_TRY(Resume());
  MR_TRY(OpenTelemetry());
  const data::Loader::Options loader{.rank = layout_->data_rank(),
                                     .ranks = layout_->data_ranks(),
                                     .global_batch = options_.global_batch,
                                     .micro_batch = options_.micro_batch,
                                     .threads = options_.data.threads};
  loader_ = MR_TRY(data::Loader::Start(dataset_, data_budget_, loader, data_state_, options_.log));
  MakePlan();
  if (options_.eval_every > 0) {
    evaluator_ =
        MR_TRY(Evaluator::Open(connection_, tokenizer_, options_.data, options_.eval_samples, *layout_, options_.log));
  }
  return OpenMetrics();
}

Status Trainer::CheckBatch() const {
  const int rows = layout_->data_ranks() * options_.micro_batch;
  if (options_.micro_batch < 1 || options_.global_batch < 1 || options_.global_batch % rows != 0) {
    return Fail(Code::kInvalidArgument,
                "train.global_batch {} is not a multiple of {} data-parallel ranks times train.micro_batch {}",
                options_.global_batch, layout_->data_ranks(), options_.micro_batch);
  }
  const int tokens = options_.micro_batch * options_.data.sequence_length;
  if (layout_->tensor().divides_tokens() && tokens % layout_->tensor().size() != 0) {
    return Fail(Code::kInvalidArgument,
                "train.parallel.sequence: {} tokens (train.micro_batch {} times data.sequence_length {}) do not divide "
                "among {} tensor-parallel ranks",
                tokens, options_.micro_batch, options_.data.sequence_length, layout_->tensor().size());
  }
  return {};
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

/// All ranks open the same: another checkpoint may be committed there meanwhile.
Result<checkpoint::ModelSource> Trainer::OpenSource() {
  const auto open = [&](std::optional<std::uint64_t> step) {
    return checkpoint::ModelSource::Open(connection_, options_.model_url, step, options_.log);
  };
  constexpr std::int64_t kFolder = -1;
  const at::Tensor step = at::scalar_tensor(kFolder, at::kLong);
  std::optional<checkpoint::ModelSource> source;
  if (leads()) {
    source = MR_TRY(open(std::nullopt));
    if (source->step()) step.fill_(static_cast<std::int64_t>(*source->step()));
  }
  MR_TRY(group_.Broadcast(step, 0));
  if (source) return *std::move(source);
  const auto chosen = step.item<std::int64_t>();
  return open(chosen == kFolder ? std::nullopt : std::optional(static_cast<std::uint64_t>(chosen)));
}

Status Trainer::OpenModel() {
  Json json = options_.model_config;
  std::string what = "model.config";
  std::optional<checkpoint::ModelSource> source;
  if (!options_.model_url.empty()) {
    source = MR_TRY(OpenSource());
    const Json* stored = JsonFind(source->reader().manifest().meta, checkpoint::kMetaModelConfig);
    if (stored == nullptr) return Fail(Code::kNotFound, "{} has no config.json", options_.model_url);
    json = *stored;
    what = options_.model_url + "/config.json";
  } else if (const Json* size = JsonFind(json, "vocab_size"); size == nullptr || *size == 0) {
    json["vocab_size"] = tokenizer_->vocab_size();
  }
  const auto config = MR_TRY(engine::ParseModelConfig(json, what));
  if (!config->generates()) {
    return Fail(Code::kUnsupported, "{}: training of {} models is not supported by this version", what,
                config->family());
  }
  const engine::ModelSizes sizes = config->sizes();
  if (sizes.vocab_size < tokenizer_->vocab_size()) {
    return Fail(Code::kInvalidArgument,
                "the model has {} tokens, the tokenizer {} makes {}; set model.config.vocab_size", sizes.vocab_size,
                options_.tokenizer_url, tokenizer_->vocab_size());
  }
  if (sizes.max_positions < options_.data.sequence_length) {
    return Fail(Code::kInvalidArgument, "sequences of {} tokens are longer than the model's {} positions",
                options_.data.sequence_length, sizes.max_positions);
  }
  const engine::TensorRanks tensor = layout_->tensor();
  state_ranks_ = {.replica = &layout_->data(), .tensor = tensor, .stage = tensor.group, .model = tensor.group};
  model_ = MR_TRY(engine::MakeModel(config, options_.precision, at::kCPU, options_.seed, {.ranks = layout_->tensor()}));
  if (source) {
    MR_TRY(engine::ReadWeights(source->reader(), *model_));
    MR_TRY(group_.Barrier());  // rank 0 may hold the checkpoint for all
  }
  auto optimizer = MR_TRY(engine::CatchTorch("allocating gradients and optimizer state", [&] {
    model_->buffer().EnableGradients();
    return engine::MakeOptimizer(model_->buffer(), options_.optimizer, state_ranks_);
  }));
  optimizer_ = MR_TRY(std::move(optimizer));
  exchange_ = std::make_unique<engine::DataExchange>(model_->buffer(), state_ranks_);
  tensors_ = StateTensors(*model_, *optimizer_);
  return {};
}

Status Trainer::Resume() {
  if (options_.checkpoint_url.empty()) return {};
  checkpoints_ = MR_TRY(Checkpointing::Open(connection_, group_, options_, heartbeat_, observer_.on_checkpoint));
  const RunIdentity identity{.tokenizer_fingerprint = tokenizer_->fingerprint(),
                             .optimizer = std::string(optimizer_->name())};
  if (const auto resumed = MR_TRY(checkpoints_->Resume(tensors_, identity))) {
    optimizer_->Restore(resumed->state.optimizer_steps);
    step_ = resumed->state.step;
    data_state_ = resumed->state.data;
    quality_ = resumed->metrics;
  }
  return checkpoints_->Prepare(tensors_);
}

Status Trainer::OpenTelemetry() {
  if (options_.tensorboard_url.empty() || !leads()) return {};
  auto writer = MR_TRY(
      metrics::EventWriter::Open(connection_, options_.tensorboard_url, {.suffix = options_.name + ".rank0"}, clock_));
  telemetry_ = std::make_unique<Telemetry>(std::move(writer), clock_, options_.log);
  return {};
}

Status Trainer::OpenMetrics() {
  if (options_.metrics_listen.empty() || !leads()) return {};
  metrics_ = std::make_unique<StepMetrics>(plan_);
  metrics_server_ = MR_TRY(metrics::ServeMetrics({.listen = options_.metrics_listen,
                                                  .access = options_.metrics_access,
                                                  .how = "log.metrics_key_file, or log.metrics_insecure: true",
                                                  .log = options_.log},
                                                 [this] { return metrics_->PrometheusText(); }));
  return {};
}

void Trainer::MakePlan() {
  const engine::ModelConfig& config = model_->config();
  const engine::ModelSizes sizes = config.sizes();
  const std::uint64_t per_epoch = loader_->batches_per_epoch();
  plan_.name = options_.name;
  plan_.precision = options_.precision == at::kFloat ? "f32" : "bf16";
  plan_.ranks = group_.size();
  plan_.tensor = layout_->tensor().size();
  plan_.sequence = layout_->tensor().divides_tokens();
  plan_.global_batch = options_.global_batch;
  plan_.micro_batch = options_.micro_batch;
  plan_.sequence_length = options_.data.sequence_length;
  plan_.accumulation =
      static_cast<std::uint64_t>(options_.global_batch / (layout_->data_ranks() * options_.micro_batch));
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
  // FLOPs are linear in the length that a token attends within; a configuration counts its layers for each answer.
  flops_of_products_ = config.FlopsPerToken(0);
  flops_per_position_ = config.FlopsPerToken(1) - flops_of_products_;
  plan_.flops_per_token = flops_of_products_ + flops_per_position_ * options_.data.sequence_length;
  plan_.checkpoint_url = options_.checkpoint_url;
  schedule_ = options_.schedule;
  schedule_.total_steps = plan_.steps;
  if (options_.warmup_proportion > 0) {
    schedule_.warmup_steps = engine::WarmupSteps(options_.warmup_proportion, plan_.steps);
  }

  // Weights, gradients and moments are exact; activations are what a backward pass keeps of each layer.
  std::uint64_t state_bytes = static_cast<std::uint64_t>(model_->buffer().GradientBytes());
  for (const StateTensor& tensor : tensors_) state_bytes += tensor.tensor.nbytes();
  const std::int64_t stream = 5 * sizes.hidden_size / (plan_.sequence ? plan_.tensor : 1);
  const std::int64_t inside =
      3 * sizes.intermediate_size + 3 * (sizes.num_heads + 2 * sizes.num_kv_heads) * sizes.head_dim;
  const std::int64_t kept = sizes.num_layers * (stream + inside / plan_.tensor);
  const std::int64_t tokens = static_cast<std::int64_t>(options_.micro_batch) * options_.data.sequence_length;
  const auto activations = static_cast<std::uint64_t>(tokens * kept) * at::elementSize(options_.precision);
  const std::uint64_t snapshot = checkpoints_ ? checkpoints_->snapshot_bytes() : 0;
  plan_.memory_bytes = state_bytes + activations + snapshot + options_.memory_budget;
}

Json Trainer::Meta() const {
  RunState state{.step = step_,
                 .optimizer = std::string(optimizer_->name()),
                 .optimizer_steps = optimizer_->steps(),
                 .seed = options_.seed,
                 .data = loader_->state(),
                 .model_config = model_->config().ToJson(),
                 .transposed = TransposedWeights(*model_),
                 .tokenizer_url = options_.tokenizer_url,
                 .tokenizer_fingerprint = tokenizer_->fingerprint()};
  state.model_config["torch_dtype"] = options_.precision == at::kFloat ? "float32" : "bfloat16";
  if (tokenizer_->bos() != tokenizer::kNoToken) state.model_config["bos_token_id"] = tokenizer_->bos();
  if (tokenizer_->eos() != tokenizer::kNoToken) state.model_config["eos_token_id"] = tokenizer_->eos();
  Json meta = state.ToJson();
  if (!options_.job.empty()) meta["job"] = options_.job;
  return meta;
}

Result<Outcome> Trainer::Run(std::stop_token stop) {
  if (leads() && observer_.on_plan) observer_.on_plan(plan_);
  Outcome outcome{.step = step_, .steps = plan_.steps};
  while (step_ < plan_.last_step && !outcome.stopped) {
    const Stopwatch whole(clock_);
    Sums all;
    StepReport report = MR_TRY(Step(stop.stop_requested(), all));
    outcome.stopped = all.stop;
    quality_ = {{"loss", report.loss}};
    const bool last = step_ >= plan_.last_step || outcome.stopped;
    std::optional<EvalReport> evaluated;
    if (!outcome.stopped) evaluated = MR_TRY(EvaluateIfDue(last));
    if (evaluated) quality_["eval_loss"] = evaluated->loss;
    if (evaluated) report.eval_loss = evaluated->loss;
    if (checkpoints_) {
      const SavePoint point{.step = step_, .last = last, .metrics = quality_, .busy = all.busy};
      report.checkpoint_wait_s += checkpoints_->SaveIfDue(point, [this] { return Meta(); });
    }
    report.step_s = whole.Seconds() - (evaluated ? evaluated->seconds : 0);
    outcome.step = step_;
    outcome.loss = report.loss;
    MR_TRY(heartbeat_.Beat(step_));
    if (telemetry_) telemetry_->Add(report);
    if (metrics_) metrics_->Add(report);
    if (leads() && observer_.on_step && (last || step_ % options_.log_every == 0)) observer_.on_step(report);
    if (leads() && observer_.on_eval && evaluated) observer_.on_eval(*evaluated);
  }
  outcome.stopped = outcome.stopped && step_ < plan_.last_step;
  if (!checkpoints_) return outcome;
  // A finished run whose last checkpoint never left the local disk has this one thing to do.
  if (step_ == plan_.steps) checkpoints_->SaveFinished(step_, quality_, [this] { return Meta(); });
  MR_TRY(checkpoints_->Finish(step_));
  return outcome;
}

Result<std::optional<EvalReport>> Trainer::EvaluateIfDue(bool last) {
  if (!evaluator_ || (!last && step_ % options_.eval_every != 0)) return std::nullopt;
  const KeepBeating beating(heartbeat_, step_, clock_);
  const Stopwatch evaluating(clock_);
  EvalReport report = MR_TRY(evaluator_->Evaluate(*model_));
  report.step = step_;
  report.seconds = evaluating.Seconds();
  report.tells_perplexity = options_.eval_perplexity;
  return report;
}

Result<StepReport> Trainer::Step(bool stop_here, Sums& all) {
  StepReport report{.step = step_ + 1, .lr = schedule_.At(step_)};
  report.tokens = static_cast<std::uint64_t>(options_.global_batch) * static_cast<std::uint64_t>(plan_.sequence_length);
  Sums mine = MR_TRY(ForwardBackward(report));
  mine.stop = stop_here;
  if (checkpoints_) mine.busy = checkpoints_->busy();
  all = MR_TRY(SumOverRanks(mine, report));
  if (all.tokens == 0) return Fail(Code::kInvalidArgument, "step {}: no label of the batch counts", report.step);

  const double context = all.context / static_cast<double>(report.tokens);
  report.flops_per_token = flops_of_products_ + flops_per_position_ * context;

  // Gradients are of the sum of all losses; one factor makes them the mean's and clips them.
  const double scale = 1 / static_cast<double>(all.tokens);
  report.loss = all.loss * scale;
  report.grad_norm = MR_TRY(
      engine::CatchTorch("gradient norm", [&] { return engine::GradientNorm(model_->buffer(), scale, state_ranks_); }));
  if (!std::isfinite(report.loss) || !std::isfinite(report.grad_norm)) {
    return Fail(Code::kInternal,
                "step {}: the loss is {} and the gradient norm {}; nothing of this step was kept. Try a lower learning "
                "rate, more warm-up steps or a smaller clip_norm",
                report.step, report.loss, report.grad_norm);
  }
  // What is being saved of the step before is copied beside the passes above; now it will change.
  if (checkpoints_) report.checkpoint_wait_s += SecondsOf(checkpoints_->WaitCopied());
  MR_TRY(engine::CatchTorch("optimizer step", [&] {
    optimizer_->Step(report.lr, scale * engine::ClipScale(report.grad_norm, options_.clip_norm));
    exchange_->ShareValues();
  }));
  ++step_;
  return report;
}

Result<Trainer::Sums> Trainer::ForwardBackward(StepReport& report) {
  Sums sums;
  exchange_->BeginStep(static_cast<int>(plan_.accumulation));
  for (std::uint64_t i = 0; i < plan_.accumulation; ++i) {
    const Stopwatch waiting(clock_);
    const data::Loader::Stats before = loader_->stats();
    data::Batch batch = MR_TRY(loader_->Next());
    report.data_wait_s += waiting.Seconds();
    const data::Loader::Stats after = loader_->stats();
    for (int s = 0; s < data::kLoadStages; ++s) {
      report.data_wait_on_s[s] += SecondsOf(after.waited_on[s] - before.waited_on[s]);
    }
    sums.tokens += batch.loss_tokens;
    sums.context += ContextOf(batch);
    sums.loss += MR_TRY(engine::CatchTorch("forward and backward pass", [&] {
      const auto tensor = [&](std::vector<data::TokenId>& ids) {
        return at::from_blob(ids.data(), {batch.rows, batch.sequence_length}, at::kInt).to(at::kLong);
      };
      const engine::ops::DropoutRows dropout{.seed = options_.seed,
                                             .step = step_,
                                             .first_sample = batch.first_sample,
                                             .row_length = batch.sequence_length};
      const at::Tensor loss = model_->LossSum({.inputs = tensor(batch.inputs),
                                               .labels = tensor(batch.labels),
                                               .documents = batch.cu_seqlens,
                                               .dropout = dropout,
                                               .loss = options_.loss});
      model_->Backward(0, loss);
      return loss.item<double>();
    }));
  }
  report.comm_wait_s += SecondsOf(MR_TRY(exchange_->Finish()));
  return sums;
}

Result<Trainer::Sums> Trainer::SumOverRanks(Sums mine, StepReport& report) {
  const Stopwatch waiting(clock_);
  if (!layout_->counts_samples()) mine.loss = mine.context = static_cast<double>(mine.tokens = 0);
  const at::Tensor sums = at::tensor({mine.loss, static_cast<double>(mine.tokens), mine.context, mine.stop ? 1.0 : 0.0,
                                      mine.busy.store ? 1.0 : 0.0, mine.busy.local ? 1.0 : 0.0},
                                     at::kDouble);
  MR_TRY(group_.AllReduce(sums));
  report.comm_wait_s += waiting.Seconds();
  const double* all = sums.data_ptr<double>();
  return Sums{.loss = all[0],
              .tokens = static_cast<std::uint64_t>(all[1]),
              .context = all[2],
              .stop = all[3] > 0,
              .busy = {.store = all[4] > 0, .local = all[5] > 0}};
}

}  // namespace

Result<Outcome> Train(object::Connection& connection, engine::Collective& group, const Options& options,
                      const Observer& observer, std::stop_token stop) {
  if (options.steps.has_value() == options.epochs.has_value()) {
    return Fail(Code::kInvalidArgument, "a run takes either train.steps or train.epochs");
  }
  Trainer trainer(connection, group, options, observer);
  MR_TRY(trainer.Prepare());
  return trainer.Run(stop);
}

}  // namespace millrace::train
