#include "millrace/train/reporting/tracker_observer.h"

#include "millrace/train/reporting/stopwatch.h"

namespace millrace::train {

tracking::Metrics StepMetricsOf(const StepReport& report) {
  tracking::Metrics metrics = {
      {"train/loss", report.loss}, {"train/lr", report.lr}, {"train/grad_norm", report.grad_norm}};
  for (const auto& [name, value] : report.preferences) metrics["train/" + name] = value;
  for (const auto& [name, value] : report.evaluated) metrics["eval/" + name] = value;
  return metrics;
}

tracking::Metrics SpeedMetricsOf(const StepReport& means) {
  const double share = means.step_s > 0 ? 1 / means.step_s : 0;
  const auto on = [&](data::LoadStage stage) { return means.data_wait_on_s[static_cast<std::size_t>(stage)]; };
  return {{"speed/tokens_per_s", means.tokens_per_s()},
          {"speed/data_wait_share", means.data_wait_s * share},
          {"speed/data_wait_on_network_share", on(data::LoadStage::kNetwork) * share},
          {"speed/data_wait_on_tokenize_share", on(data::LoadStage::kTokenize) * share},
          {"speed/comm_wait_share", means.comm_wait_s * share},
          {"speed/checkpoint_wait_share", means.checkpoint_wait_s * share}};
}

void TrackerObserver::OnRestart(const RunRestart& restart) {
  // The tracker has learnt of a resumed run when it was opened.
  if (restart.cause == RunRestart::Cause::kResumed) return;
  tracker_->AddMetrics(step_, {{"train/went_back_to", static_cast<double>(restart.step)}});
}

void TrackerObserver::OnStep(const StepReport& report) {
  step_ = report.step;
  tracking::Metrics metrics = StepMetricsOf(report);
  if (report.loss_scale) metrics["train/loss_scale"] = *report.loss_scale;
  if (report.spike || report.overflow || report.unlabelled) metrics["train/left_out"] = 1;
  tracker_->AddMetrics(report.step, metrics);
}

void TrackerObserver::OnFigures(const StepReport& means) { tracker_->AddMetrics(means.step, SpeedMetricsOf(means)); }

void TrackerObserver::OnCheckpoint(const Result<checkpoint::SaveStats>& saved) {
  if (!saved) return tracker_->AddCheckpoint({.error = saved.error().ToString()});
  tracker_->AddCheckpoint({.step = saved->step,
                           .tier = saved->tier == checkpoint::CheckpointTier::kLocal ? "local" : "store",
                           .url = checkpoint_url_,
                           .bytes = saved->bytes,
                           .seconds = SecondsOf(saved->total),
                           .error = ""});
}

void TrackerObserver::OnEnd(const RunEnd& end) {
  using tracking::RunEnding;
  if (end.error) return tracker_->End(RunEnding::kFailed, end.error->ToString());
  tracker_->End(end.outcome.stopped ? RunEnding::kStopped : RunEnding::kFinished, "");
}

void CallbackObserver::OnPlan(const Plan& plan) { callbacks_->Call("on_plan", plan.ToJson()); }

void CallbackObserver::OnRestart(const RunRestart& restart) { callbacks_->Call("on_restart", restart.ToJson()); }

void CallbackObserver::OnStep(const StepReport& report) {
  if (callbacks_->Has("on_step")) callbacks_->Call("on_step", report.ToJson());
}

void CallbackObserver::OnEvaluation(const EvalReport& report) { callbacks_->Call("on_evaluation", report.ToJson()); }

void CallbackObserver::OnCheckpoint(const Result<checkpoint::SaveStats>& saved) {
  callbacks_->Call("on_checkpoint", CheckpointJson(saved));
}

void CallbackObserver::OnEnd(const RunEnd& end) { callbacks_->End(end.ToJson()); }

}  // namespace millrace::train
