// A tracker of experiments: a service that keeps the metrics of runs and compares them.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <variant>

namespace millrace::tracking {

/// The settings that a run was made with, by name: "train.optimizer.lr".
using Parameters = std::map<std::string, std::variant<double, std::string>>;
/// The metrics of a step, by name: "train/loss". NaN and infinities are values like others.
using Metrics = std::map<std::string, double>;

/// A run as a tracker learns of it.
struct TrackedRun {
  std::string id;  ///< the same for all attempts of a run; ASCII letters, digits and '-'
  std::string name;
  int attempt = 1;
  std::uint64_t resumed_from = 0;  ///< steps done before this attempt
  Parameters parameters;
};

/// A checkpoint that was committed, or failed.
struct TrackedCheckpoint {
  std::uint64_t step = 0;
  std::string tier;  ///< "store", "local"
  std::string url;   ///< of the run's checkpoints
  std::uint64_t bytes = 0;
  double seconds = 0;  ///< until it was committed
  std::string error;   ///< not empty: it failed
};

/// The end of a run, or of an attempt of one.
enum class RunEnding {
  kFinished,
  kStopped,  ///< asked to leave; it may go on
  kFailed,
};

/// One run at one tracker. AddMetrics() and AddCheckpoint() never block, and may be called by any thread. Events wait
/// in a bounded queue for a thread or a process of the tracker's own. An event that finds the queue full is dropped;
/// the log says so at once, and at the end how many there were. No failure of a tracker is one of the run: the log has
/// the first failure, and the run goes on.
class Tracker {
 public:
  /// Ends it as a failure if End() was not called.
  virtual ~Tracker() = default;
  virtual void AddMetrics(std::uint64_t step, const Metrics& metrics) = 0;
  virtual void AddCheckpoint(const TrackedCheckpoint& checkpoint) = 0;
  /// Sends what waits, and how the run ended. Blocks until the tracker has it, at most for half a minute. Call it once,
  /// after all other calls have returned. `why`: a sentence for a run that failed.
  virtual void End(RunEnding ending, std::string_view why) = 0;
};

}  // namespace millrace::tracking
