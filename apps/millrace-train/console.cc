#include "apps/millrace-train/console.h"

#include <fmt/format.h>

#include <chrono>

#include "apps/common/output.h"
#include "millrace/base/json.h"
#include "millrace/base/text.h"
#include "millrace/train/compile/step_compiler.h"

namespace millrace {
namespace {

void PrintNow(const std::string& text) {
  cli::WriteOutput(text);
  cli::FlushOutput();
}

/// Prints the form of a report that the user wants.
template <class Report>
void PrintReport(bool json, const Report& report) {
  PrintNow((json ? DumpJson(report.ToJson()) : report.ToText()) + "\n");
}

std::string TextOf(const checkpoint::SaveStats& saved) {
  const bool local = saved.tier == checkpoint::CheckpointTier::kLocal;
  return fmt::format("checkpoint of step {} committed{}: {} in {}, held up {:.1f} ms", saved.step,
                     local ? " locally" : "", FormatBytes(saved.bytes), FormatDuration(saved.total),
                     std::chrono::duration<double, std::milli>(saved.blocked).count());
}

}  // namespace

void Console::OnCompiled(const train::CompileReport& report) { PrintReport(json_, report); }

void Console::OnPlan(const train::Plan& plan) {
  steps_ = plan.steps;
  PrintNow(json_ ? DumpJson(plan.ToJson()) + "\n" : plan.ToText());
}

void Console::OnFigures(const train::StepReport& means) {
  PrintNow((json_ ? DumpJson(means.ToJson()) : means.ToText(steps_)) + "\n");
}

void Console::OnEvaluation(const train::EvalReport& report) { PrintReport(json_, report); }

void Console::OnCheckpoint(const Result<checkpoint::SaveStats>& saved) {
  if (json_) PrintNow(DumpJson(train::CheckpointJson(saved)) + "\n");
  if (!saved) {
    cli::PrintError("millrace-train: checkpoint not saved: {}\n", saved.error().ToString());
  } else if (!json_) {
    PrintNow(TextOf(*saved) + "\n");
  }
}

void Console::OnEnd(const train::RunEnd& end) {
  // The program prints errors itself.
  if (!end.error && !end.outcome.lost) PrintReport(json_, end.outcome);
}

}  // namespace millrace
