#include "millrace/train/reporting/step_metrics.h"

#include <vector>

namespace millrace::train {
namespace {

/// From 1 ms, as good as no wait, to half an hour.
std::vector<double> SecondsBounds() {
  std::vector<double> bounds;
  for (double bound = 1e-3; bound < 3600; bound *= 2) bounds.push_back(bound);
  return bounds;
}

}  // namespace

StepMetrics::StepMetrics(const Plan& plan)
    : step_(registry_.AddGauge("millrace_train_step", "Steps done")),
      loss_(registry_.AddGauge("millrace_train_loss", "Of the last step")),
      lr_(registry_.AddGauge("millrace_train_learning_rate", "Of the last step")),
      grad_norm_(registry_.AddGauge("millrace_train_grad_norm", "Of the last step, before clipping")),
      tokens_per_second_(registry_.AddGauge("millrace_train_tokens_per_second", "Of the last step, all ranks")),
      tokens_(
          registry_.AddCounter("millrace_train_tokens_total", "Tokens trained on by this process's run, all ranks")),
      step_seconds_(registry_.AddHistogram("millrace_train_step_seconds", "Time of a step", SecondsBounds())),
      data_wait_(registry_.AddHistogram("millrace_train_wait_seconds", "Time of a step in which it stood still",
                                        SecondsBounds(), {{"for", "data"}})),
      comm_wait_(
          registry_.AddHistogram("millrace_train_wait_seconds", "", SecondsBounds(), {{"for", "communication"}})),
      checkpoint_wait_(
          registry_.AddHistogram("millrace_train_wait_seconds", "", SecondsBounds(), {{"for", "checkpoint"}})) {
  registry_.AddGauge("millrace_train_steps_planned", "Steps that the run will have")
      .Set(static_cast<double>(plan.steps));
  step_.Set(static_cast<double>(plan.resumed_from));
  for (int s = 0; s < data::kLoadStages; ++s) {
    data_wait_on_[s] = &registry_.AddHistogram(
        "millrace_train_data_wait_seconds", "Of the waits for data, what the data were waiting for themselves",
        SecondsBounds(), {{"stage", std::string(data::LoadStageName(static_cast<data::LoadStage>(s)))}});
  }
}

void StepMetrics::Add(const StepReport& report) {
  step_.Set(static_cast<double>(report.step));
  loss_.Set(report.loss);
  lr_.Set(report.lr);
  grad_norm_.Set(report.grad_norm);
  tokens_per_second_.Set(report.tokens_per_s());
  tokens_.Add(report.tokens);
  step_seconds_.Observe(report.step_s);
  data_wait_.Observe(report.data_wait_s);
  comm_wait_.Observe(report.comm_wait_s);
  checkpoint_wait_.Observe(report.checkpoint_wait_s);
  for (int s = 0; s < data::kLoadStages; ++s) data_wait_on_[s]->Observe(report.data_wait_on_s[s]);
}

}  // namespace millrace::train
