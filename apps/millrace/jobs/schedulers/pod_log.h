// The output of a supervisor in a pod. `millrace job` elsewhere reads the pod's log.
#pragma once

#include <string>

#include "millrace/base/clock.h"
#include "millrace/jobs/state.h"
#include "millrace/jobs/supervisor.h"

namespace millrace::cli {

/// Prints lines in the form of jobs::CollectLog(). One owner.
class PodLog {
 public:
  void Write(const std::string& line);
  void Tell(const jobs::JobEvent& event);
  /// Prints what has changed at once, and the steps now and then.
  void Tell(const jobs::JobStatus& status);

 private:
  std::string state_, message_;  ///< printed last
  TimePoint next_;
};

}  // namespace millrace::cli
