#include "millrace/train/tracing/trace_observer.h"

namespace millrace::train {

void TraceObserver::OnStepBegin(std::uint64_t step) {
  tracer_.BeforeStep(step);
  scope_.emplace(&tracer_.recorder());
}

void TraceObserver::OnStepEnd(std::uint64_t step, bool last) {
  scope_.reset();
  if (!tracer_.IsDue(step, last)) return;
  const HeartbeatScope beating(heartbeat_, step, clock_);
  if (const Status written = tracer_.Write(requests_.spans()); !written) {
    log_.Warning("the trace was not written", {{"error", written.error()}});
  }
}

void TraceObserver::OnEnd(const RunEnd&) { scope_.reset(); }

}  // namespace millrace::train
