// Traces the steps of a run on one rank, as an observer of the run.
#pragma once

#include <optional>

#include "millrace/base/clock.h"
#include "millrace/base/log.h"
#include "millrace/trace/recorder.h"
#include "millrace/train/reporting/heartbeat.h"
#include "millrace/train/reporting/run_observer.h"
#include "millrace/train/tracing/step_tracer.h"
#include "millrace/train/tracing/traced_store.h"

namespace millrace::train {

/// Records what the thread of Train() does in each step. Behind the last step to be traced, all ranks write their
/// traces, while `heartbeat` beats. If a rank is lost then, the log says so, and the run notices in its next exchange.
class TraceObserver final : public RunObserver {
 public:
  /// `requests` records those to stores. REQUIRES: all references outlive this object.
  TraceObserver(StepTracer& tracer, const TracedConnection& requests, Heartbeat& heartbeat, Clock& clock, Logger log)
      : tracer_(tracer), requests_(requests), heartbeat_(heartbeat), clock_(clock), log_(std::move(log)) {}
  std::string_view observer_name() const override { return "train.profile"; }
  void OnStepBegin(std::uint64_t step) override;
  void OnCheckpoint(const Result<checkpoint::SaveStats>& saved) override { tracer_.NoteCheckpoint(saved); }
  void OnStepEnd(std::uint64_t step, bool last) override;
  void OnEnd(const RunEnd& end) override;

 private:
  StepTracer& tracer_;
  const TracedConnection& requests_;
  Heartbeat& heartbeat_;
  Clock& clock_;
  const Logger log_;
  std::optional<trace::ThreadScope> scope_;  ///< in a step, of the thread of Train()
};

}  // namespace millrace::train
