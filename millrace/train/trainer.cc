#include "millrace/train/trainer.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <optional>
#include <span>
#include <utility>

#include "millrace/engine/errors.h"
#include "millrace/engine/ops/common/step_kernels.h"
#include "millrace/engine/sharding/divided_gradients.h"
#include "millrace/trace/recorder.h"
#include "millrace/train/checks.h"
#include "millrace/train/reporting/stopwatch.h"
#include "millrace/train/training_run.h"

namespace millrace::train {
namespace {

/// The sums of a step: of one rank, or over all ranks, where a flag says that one of them has it.
struct StepSums {
  PassSums passes;
  bool stop = false;  ///< the run was asked to end behind this step
  SaversBusy busy;
  bool fenced = false;  ///< Checkpointing::fenced()
};

/// Returns the sums over all ranks. `compares`: the sums have preferences, on all ranks. One all-reduce of about a
/// dozen numbers. Collective. Errors: kUnavailable if a rank is lost.
Result<StepSums> SumOverRanks(engine::Collective& group, const StepSums& mine, bool compares) {
  const PassSums& passes = mine.passes;
  std::vector<double> numbers = {passes.loss,
                                 static_cast<double>(passes.labels.tokens),
                                 static_cast<double>(passes.labels.rows),
                                 passes.context,
                                 mine.stop ? 1.0 : 0.0,
                                 mine.busy.store ? 1.0 : 0.0,
                                 mine.busy.local ? 1.0 : 0.0,
                                 mine.fenced ? 1.0 : 0.0};
  const std::size_t preferences = numbers.size();
  if (compares) std::ranges::copy(passes.preferences.of, std::back_inserter(numbers));
  const at::Tensor sums = at::tensor(numbers, at::kDouble);
  MR_TRY(group.AllReduce(sums));
  const std::span<const double> all(sums.data_ptr<double>(), numbers.size());
  StepSums total{.passes = {.loss = all[0],
                            .labels = {static_cast<std::uint64_t>(all[1]), static_cast<std::uint64_t>(all[2])},
                            .context = all[3],
                            .preferences = {}},
                 .stop = all[4] > 0,
                 .busy = {.store = all[5] > 0, .local = all[6] > 0},
                 .fenced = all[7] > 0};
  if (compares) total.passes.preferences.Add(all.subspan(preferences));
  return total;
}

/// The loop over the steps of a run that was built.
class TrainingLoop {
 public:
  explicit TrainingLoop(TrainingRun& run) : run_(run) {}

  Result<RunOutcome> Run(std::stop_token stop);
  /// Tells the observers how the run ended, if they know of it.
  void TellEnd(const Result<RunOutcome>& outcome);

 private:
  Status RunStep(std::stop_token stop, RunOutcome& outcome);
  Result<StepReport> Step(bool stop_here, StepSums& all);
  Result<StepSums> RunPasses(bool stop_here, double loss_factor, StepReport& report);
  Status Learn(StepReport& report, double scale);
  double LossFactor() const;
  Status EndSpike(StepReport& report);
  Status LeaveOut();
  Result<std::optional<EvalReport>> EvaluateIfDue(bool last);

  TrainingRun& run_;
  bool told_plan_ = false;
};

Result<RunOutcome> TrainingLoop::Run(std::stop_token stop) {
  if (run_.options.compile_only) return RunOutcome{.step = run_.step, .steps = run_.step};
  const engine::ops::KernelScope scope(run_.kernels.kernels);
  told_plan_ = true;
  run_.observers.OnPlan(run_.plan);
  if (run_.step > 0) run_.observers.OnRestart({.step = run_.step, .attempt = run_.options.attempt});
  RunOutcome outcome{.step = run_.step, .steps = run_.plan.steps};
  if (run_.checkpoints && run_.step >= run_.plan.steps) MR_TRY(run_.checkpoints->CheckComplete());
  while (run_.step < run_.plan.last_step && !outcome.stopped) {
    run_.observers.OnStepBegin(run_.step + 1);
    MR_TRY(RunStep(stop, outcome));
    run_.observers.OnStepEnd(run_.step, outcome.stopped || run_.step >= run_.plan.last_step);
  }
  outcome.stopped = outcome.stopped && run_.step < run_.plan.last_step;
  if (!run_.checkpoints) return outcome;
  // A finished run whose last checkpoint never left the local disk has this one thing to do.
  if (run_.step == run_.plan.steps)
    run_.checkpoints->SaveFinished(run_.step, run_.quality, [this] { return run_.Meta(); });
  MR_TRY(run_.checkpoints->Finish(run_.step));
  return outcome;
}

void TrainingLoop::TellEnd(const Result<RunOutcome>& outcome) {
  if (!told_plan_) return;
  const HeartbeatScope beating(run_.heartbeat, run_.step, run_.clock);
  if (outcome) return run_.observers.OnEnd({.outcome = *outcome});
  run_.observers.OnEnd({.outcome = {.step = run_.step, .steps = run_.plan.steps}, .error = outcome.error()});
}

/// Makes a step, with the evaluation and the checkpoint that are due after it, and reports it.
Status TrainingLoop::RunStep(std::stop_token stop, RunOutcome& outcome) {
  trace::Span span("step", trace::Category::kStep);
  if (span) span.SetArguments({{"step", run_.step + 1}});
  const Stopwatch whole(run_.clock);
  StepSums all;
  StepReport report = MR_TRY(Step(stop.stop_requested(), all));
  outcome.stopped = all.stop;
  // A step that is not learnt from leaves the weights, and how good they are, as they were.
  if (!report.spike && !report.overflow && !report.unlabelled) run_.quality = {{"loss", report.loss}};
  const bool last = run_.step >= run_.plan.last_step || outcome.stopped;
  std::optional<EvalReport> evaluated;
  if (!outcome.stopped && !report.went_back) evaluated = MR_TRY(EvaluateIfDue(last));
  if (evaluated) report.evaluated = evaluated->Metrics();
  for (const auto& [name, value] : report.evaluated) run_.quality["eval_" + name] = value;
  if (run_.checkpoints) {
    const trace::Span saving("save", trace::Category::kCheckpoint);
    const SavePoint point{.step = run_.step, .last = last, .metrics = run_.quality, .busy = all.busy};
    report.checkpoint_wait_s += run_.checkpoints->SaveIfDue(point, [this] { return run_.Meta(); });
  }
  report.step_s = whole.Seconds() - (evaluated ? evaluated->seconds : 0);
  outcome.step = run_.step;
  outcome.loss = report.loss;
  MR_TRY(run_.heartbeat.Beat(run_.step));
  return run_.reporting->AfterStep(report, evaluated,
                                   /*tells_figures=*/last || run_.step % run_.options.reports.every_steps == 0);
}

Result<std::optional<EvalReport>> TrainingLoop::EvaluateIfDue(bool last) {
  if (!run_.evaluator || (!last && run_.step % run_.options.eval.every_steps != 0)) return std::nullopt;
  const trace::Span span("evaluation", trace::Category::kPass);
  const HeartbeatScope beating(run_.heartbeat, run_.step, run_.clock);
  const Stopwatch evaluating(run_.clock);
  EvalReport report = MR_TRY(run_.evaluator->Evaluate(*run_.model.passes));
  report.step = run_.step;
  report.seconds = evaluating.Seconds();
  // Rewards tell more of pairs.
  const bool compares = run_.options.data.objective == data::Objective::kDpo;
  report.tells_perplexity = run_.options.eval.Reports("perplexity") && !compares;
  report.tells_accuracy = run_.options.eval.Reports("accuracy") && !compares;
  return report;
}

Result<StepReport> TrainingLoop::Step(bool stop_here, StepSums& all) {
  StepReport report{.step = run_.step + 1, .lr = run_.schedule.At(run_.step)};
  report.tokens =
      static_cast<std::uint64_t>(run_.options.global_batch) * static_cast<std::uint64_t>(run_.plan.sequence_length);
  report.loss_scale = run_.judge.loss_scale();
  const double loss_factor = LossFactor();
  all = MR_TRY(RunPasses(stop_here, loss_factor, report));
  if (all.fenced) return Fail(run_.checkpoints->AwaitFenced(run_.step));
  const std::uint64_t labels = all.passes.labels.denominator();
  if (labels == 0) {  // as in a batch of pairs whose prompts fill their halves of the rows
    report.unlabelled = true;
    MR_TRY(LeaveOut());
    return report;
  }

  const double context = all.passes.context / static_cast<double>(report.tokens);
  // FLOPs are linear in what attention spans; a shape counts its layers for each answer.
  const double of_products = run_.opened.shape.FlopsPerToken(0);
  report.flops_per_token = of_products + (run_.opened.shape.FlopsPerToken(1) - of_products) * context;

  // Gradients are of the sum of all losses; one factor makes them the mean's and clips them.
  const double scale = 1 / (static_cast<double>(labels) * loss_factor);
  report.loss = all.passes.loss / static_cast<double>(labels);
  if (run_.options.data.objective == data::Objective::kDpo) report.preferences = all.passes.preferences.Means();
  report.grad_norm = MR_TRY(engine::CatchTorch("gradient norm", [&] {
    const trace::Span span("gradient norm", trace::Category::kOptimizer);
    return engine::GradientNorm(run_.model.model->buffer(), scale, run_.layout->state());
  }));
  switch (MR_TRY(run_.judge.CheckStep(report))) {
    case StepGuard::Verdict::kLearn:
      break;
    case StepGuard::Verdict::kLeaveOut:
      MR_TRY(LeaveOut());
      MR_TRY(run_.judge.CheckLossScale(report.step));
      return report;
    case StepGuard::Verdict::kSpike:
      MR_TRY(EndSpike(report));
      return report;
  }
  MR_TRY(Learn(report, scale));
  return report;
}

/// Runs the passes of a step, and adds up what they found over all ranks.
Result<StepSums> TrainingLoop::RunPasses(bool stop_here, double loss_factor, StepReport& report) {
  StepSums mine{.passes = MR_TRY(run_.runner->Run(run_.step, report, loss_factor)), .stop = stop_here};
  if (run_.checkpoints) {
    mine.busy = run_.checkpoints->busy();
    mine.fenced = run_.checkpoints->fenced().has_value();
  }
  const trace::Span span("sum the losses", trace::Category::kCommunication);
  const Stopwatch waiting(run_.clock);
  const bool compares = run_.options.data.objective == data::Objective::kDpo;
  StepSums all = MR_TRY(SumOverRanks(run_.group, mine, compares));
  report.comm_wait_s += waiting.Seconds();
  return all;
}

/// Updates the weights by the gradients times `scale`.
Status TrainingLoop::Learn(StepReport& report, double scale) {
  if (run_.model.scales) MR_TRY(run_.model.scales->EndStep());
  MR_TRY(run_.reporting->AfterPasses(report.step, scale));
  // What is being saved of the step before is copied beside the passes above; now it will change.
  if (run_.checkpoints) {
    const trace::Span span("wait for the copy", trace::Category::kCheckpoint);
    report.checkpoint_wait_s += SecondsOf(run_.checkpoints->WaitCopied());
  }
  MR_TRY(engine::CatchTorch("optimizer step", [&] {
    const trace::Span span("optimizer", trace::Category::kOptimizer);
    run_.model.optimizer->Step(report.lr, scale * engine::ClipScale(report.grad_norm, run_.options.clip_norm));
  }));
  run_.model.exchange->ShareValues(engine::ChangedValues::kTrained);
  ++run_.step;
  return {};
}

/// Returns the factor of the loss in the backward passes: the loss scale of a mean over the batch, as in other
/// programs. The labels of the step are not known before its passes, so it is the mean over as many as there can be.
double TrainingLoop::LossFactor() const {
  const std::optional<double> loss_scale = run_.judge.loss_scale();
  if (!loss_scale) return 1;
  const double of_row = run_.options.data.LearnsTokens() ? run_.options.data.sequence_length : 1;
  return *loss_scale / (of_row * run_.options.global_batch);
}

/// Ends a step without a change of the weights.
Status TrainingLoop::LeaveOut() {
  MR_TRY(engine::CatchTorch("skipping a step", [&] { run_.model.optimizer->Skip(); }));
  if (run_.model.scales) run_.model.scales->Skip();
  ++run_.step;
  return {};
}

/// Ends a step whose loss or gradient jumped. All ranks have the same loss and norm, so they all come here.
Status TrainingLoop::EndSpike(StepReport& report) {
  if (run_.leads()) {
    run_.options.log.Warning("the loss or the gradient jumped; this step is not learnt from",
                             {{"step", report.step}, {"loss", report.loss}, {"grad_norm", report.grad_norm}});
  }
  MR_TRY(LeaveOut());
  std::optional<Checkpointing::Resumed> resumed;
  if (run_.options.spikes.action == SpikeOptions::Action::kRollBack && run_.checkpoints) {
    resumed = MR_TRY(run_.checkpoints->RollBack(run_.step, run_.model.tensors, run_.Identity()));
  }
  if (!resumed) return run_.judge.NoteLeftOut(run_.step);  // there may be no checkpoint yet
  // The loader stands behind the samples since that checkpoint, so that others follow.
  MR_TRY(run_.TakeState(*resumed));
  run_.model.exchange->ShareValues(engine::ChangedValues::kAll);
  report.went_back = run_.step;
  return run_.judge.NoteWentBack(run_.step);
}

}  // namespace

Result<RunOutcome> Train(object::Connection& connection, engine::Collective& group, const Options& options,
                         const std::vector<RunObserver*>& observers, std::stop_token stop) {
  MR_TRY(CheckOptions(options));
  std::optional<TracedConnection> traced;
  if (options.profile) traced.emplace(connection);
  TrainingRun run(traced ? *traced : connection, traced ? &*traced : nullptr, group, options, observers);
  TrainingLoop loop(run);
  const Status built = run.Build();
  Result<RunOutcome> outcome = built ? loop.Run(std::move(stop)) : Fail(built.error());
  if (!outcome) {
    const auto lost = run.checkpoints ? run.checkpoints->fenced() : std::nullopt;
    if (lost) {
      // The run had to leave its checkpoints to another run. All ranks know.
      outcome = RunOutcome{.step = run.step, .steps = run.plan.steps, .lost = lost};
    } else {
      run.Abort(outcome.error());
      outcome = Fail(WithAdviceOnMemory(outcome.error(), options));
    }
    run.checkpoints.reset();  // the end is the last event: nobody is told of a checkpoint behind it
  }
  loop.TellEnd(outcome);
  return outcome;
}

}  // namespace millrace::train
