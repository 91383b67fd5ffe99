// The file by which a supervisor sees that a rank makes progress.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "millrace/base/clock.h"
#include "millrace/base/files/files.h"
#include "millrace/base/result.h"
#include "millrace/base/threads/task_scope.h"

namespace millrace::train {

/// Rewrites a file with "<steps done>\n", or with "\n" before the run knows them. Thread-safe. Without a file it does
/// nothing.
class Heartbeat {
 public:
  static Result<Heartbeat> Open(const std::filesystem::path& path);
  /// Adds a line to the file, behind the steps, and beats: what the supervisor should know of the machines. The lines
  /// that it knows: millrace/jobs/README.md. Call it before another thread beats.
  Status AddLine(const std::string& line);
  Status Beat(std::optional<std::uint64_t> step);
  /// Beats unless it did so less than a second ago: a step is under way and makes progress. One thread.
  void BeatInStep(std::uint64_t step, Clock& clock);

 private:
  UniqueFd file_;
  std::string told_;  ///< lines of all calls of Tell()
  TimePoint last_in_step_ = {};
};

/// A scope in which the heartbeat is written every few seconds though no step is made. Waiting for an upload to end may
/// take longer than any step did, and is no hang: uploads have time-outs of their own.
class HeartbeatScope {
 public:
  /// Without a `step`, the run is still being prepared, and may do so as long as the supervisor lets it.
  HeartbeatScope(Heartbeat& heartbeat, std::optional<std::uint64_t> step, Clock& clock);

 private:
  TaskScope beating_;
};

}  // namespace millrace::train
