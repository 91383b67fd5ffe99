// The lines that millrace-train prints of a run.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "millrace/train/reporting/run_observer.h"

namespace millrace {

/// Prints the events of a run on standard output, as text or as JSON (millrace/train/README.md), and checkpoints that
/// failed on standard error, too.
class Console final : public train::RunObserver {
 public:
  explicit Console(bool json) : json_(json) {}
  std::string_view observer_name() const override { return "console"; }
  void OnCompiled(const train::CompileReport& report) override;
  void OnPlan(const train::Plan& plan) override;
  void OnFigures(const train::StepReport& means) override;
  void OnEvaluation(const train::EvalReport& report) override;
  void OnCheckpoint(const Result<checkpoint::SaveStats>& saved) override;
  void OnEnd(const train::RunEnd& end) override;

 private:
  const bool json_;
  std::uint64_t steps_ = 0;  ///< of the plan
};

}  // namespace millrace
