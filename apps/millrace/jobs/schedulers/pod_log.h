// The output of a supervisor in a pod. `millrace job` elsewhere reads the pod's log.
#pragma once

#include <string>

#include "millrace/base/clock.h"
#include "millrace/jobs/state.h"
#include "millrace/jobs/supervisor.h"

namespace millrace::cli {

/// Prints lines in the form of jobs::CollectLog(). One owner.
class SupervisorOutput {
 public:
  void Write(const std::string& line);
  void Print(const jobs::JobEvent& event);
  /// Prints changes at once, and the number of steps from time to time.
  void Print(const jobs::JobStatus& status);

 private:
  std::string state_, message_;  ///< printed last
  TimePoint next_;
};

}  // namespace millrace::cli
