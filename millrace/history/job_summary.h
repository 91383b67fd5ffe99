// The data of a job that views show beside its run history: the state of its processes, the events of its supervisor
// and the metrics that the job file defines.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "millrace/history/logged_metrics.h"

namespace millrace::history {

/// Plain data. Empty texts and numbers: unknown.
struct JobSummary {
  struct Rank {
    std::string node, state;
    std::int64_t pid = 0;
    std::optional<std::uint64_t> step;
  };
  struct Event {
    std::string time;  ///< ISO 8601
    std::string what, sentence;
  };
  std::string name, state, message;
  int restarts = 0;
  std::vector<Rank> ranks;
  std::vector<Event> events;  ///< oldest first
  LoggedMetrics metrics;
};

}  // namespace millrace::history
