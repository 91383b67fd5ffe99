// The file by which a supervisor sees that a rank makes progress.
#pragma once

#include <cstdint>
#include <filesystem>

#include "millrace/base/clock.h"
#include "millrace/base/files/files.h"
#include "millrace/base/result.h"
#include "millrace/base/threads/task_scope.h"

namespace millrace::train {

/// Rewrites a file with "<steps done>\n". Thread-safe. Without a file it does nothing.
class Heartbeat {
 public:
  static Result<Heartbeat> Open(const std::filesystem::path& path);
  Status Beat(std::uint64_t step);
  /// Beats unless it did so less than a second ago: a step is under way and makes progress. One thread.
  void BeatInStep(std::uint64_t step, Clock& clock);

 private:
  UniqueFd file_;
  TimePoint last_in_step_ = {};
};

/// While it lives, beats every few seconds though no step is made: waiting for an upload to end, which has time-outs of
/// its own, may take longer than any step did and is no hang.
class KeepBeating {
 public:
  KeepBeating(Heartbeat& heartbeat, std::uint64_t step, Clock& clock);

 private:
  TaskScope beating_;
};

}  // namespace millrace::train
