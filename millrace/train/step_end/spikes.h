// Steps whose loss jumps: when one is, and what a run does about it.
#pragma once

#include <cstdint>
#include <deque>

#include "millrace/base/json.h"
#include "millrace/base/result.h"

namespace millrace::train {

struct SpikeOptions {
  enum class Action {
    kNone,
    kSkipStep,  ///< the step changes no weight (as OLMo's SkipStepOptimizer)
    kRollBack,  ///< the run goes back to its newest checkpoint, and on with the samples behind these (as PaLM did)
  };
  Action action = Action::kNone;
  double sigma = 6;            ///< a spike is so many standard deviations above the mean
  std::uint32_t window = 128;  ///< of so many steps before it
};

/// Remembers losses and gradient norms. Every rank makes the same calls, and so comes to the same answers.
class SpikeDetector {
 public:
  explicit SpikeDetector(const SpikeOptions& options) : options_(options) {}

  /// Returns whether a step's loss or gradient norm lies far above those of the steps before, and remembers it if not.
  /// Until half of the window is full, nothing is a spike.
  bool IsSpike(double loss, double grad_norm);

  /// What a checkpoint must have of it, so that a resumed run comes to the same answers.
  Json ToJson() const;
  /// Errors: kCorrupt.
  Status Restore(const Json& json);

 private:
  SpikeOptions options_;
  std::deque<double> losses_, norms_;  ///< the newest last
};

}  // namespace millrace::train
