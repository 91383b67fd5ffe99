// Detects spikes: steps whose loss or gradient norm is far above that of the steps before. The options say what a run
// does then.
#pragma once

#include <cstdint>
#include <deque>

#include "millrace/base/json.h"
#include "millrace/base/result.h"
#include "millrace/train/options/spike_options.h"

namespace millrace::train {

/// Keeps the losses and gradient norms of the last steps. Every rank makes the same calls and gets the same answers.
class SpikeDetector {
 public:
  explicit SpikeDetector(const SpikeOptions& options) : options_(options) {}

  /// Returns whether the loss or the gradient norm of a step is far above those of the steps before. If it is not, adds
  /// them to the window. Returns false until half of the window is full.
  bool IsSpike(double loss, double grad_norm);

  /// Returns the state that a checkpoint needs, so that a resumed run comes to the same answers.
  Json ToJson() const;
  /// Errors: kCorrupt.
  Status Restore(const Json& json);

 private:
  SpikeOptions options_;
  std::deque<double> losses_, norms_;  ///< the newest last
};

}  // namespace millrace::train
