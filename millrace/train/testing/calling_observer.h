// An observer of a run that calls functions of a test.
#pragma once

#include <functional>
#include <string_view>

#include "millrace/train/reporting/run_observer.h"

namespace millrace::train {

/// Functions that are empty are not called.
struct CallingObserver final : RunObserver {
  std::function<void(const CompileReport&)> on_compiled;
  std::function<void(const Plan&)> on_plan;
  std::function<void(const RunRestart&)> on_restart;
  std::function<void(const StepReport&)> on_step, on_figures;
  std::function<void(const EvalReport&)> on_evaluation;
  std::function<void(const Result<checkpoint::SaveStats>&)> on_checkpoint;
  std::function<void(const RunEnd&)> on_end;

  std::string_view observer_name() const override { return "test"; }
  void OnCompiled(const CompileReport& report) override {
    if (on_compiled) on_compiled(report);
  }
  void OnPlan(const Plan& plan) override {
    if (on_plan) on_plan(plan);
  }
  void OnRestart(const RunRestart& restart) override {
    if (on_restart) on_restart(restart);
  }
  void OnStep(const StepReport& report) override {
    if (on_step) on_step(report);
  }
  void OnFigures(const StepReport& means) override {
    if (on_figures) on_figures(means);
  }
  void OnEvaluation(const EvalReport& report) override {
    if (on_evaluation) on_evaluation(report);
  }
  void OnCheckpoint(const Result<checkpoint::SaveStats>& saved) override {
    if (on_checkpoint) on_checkpoint(saved);
  }
  void OnEnd(const RunEnd& end) override {
    if (on_end) on_end(end);
  }
};

}  // namespace millrace::train
