// A run in Weights & Biases, through its Python package in a process of its own.
#pragma once

#include <memory>
#include <string_view>

#include "millrace/base/json.h"
#include "millrace/base/log.h"
#include "millrace/base/result.h"
#include "millrace/tracking/options.h"
#include "millrace/tracking/sidecar/sidecar.h"
#include "millrace/tracking/tracker.h"

namespace millrace::tracking {

/// Returns a number as sidecars take it: JSON has no NaN and no infinities, so they are the texts "nan", "inf", "-inf".
Json JsonOf(double value);

/// All attempts of a run have one run id in W&B. Its key comes from the environment or from ~/.netrc, which its package
/// reads itself.
class WandbTracker final : public Tracker {
 public:
  /// Blocks until W&B has the run: a second offline, up to two minutes where its server is slow.
  /// Errors: kInvalidArgument if there is no Python, or no package wandb, or if W&B refuses the run, for its key or its
  /// name; kUnavailable if the process fails. A server that cannot be reached is none: the run is then recorded
  /// on the disk.
  static Result<std::unique_ptr<WandbTracker>> Open(const WandbOptions& options, const TrackingOptions& shared,
                                                    const TrackedRun& run, Logger log);
  ~WandbTracker() override;

  void AddMetrics(std::uint64_t step, const Metrics& metrics) override;
  void AddCheckpoint(const TrackedCheckpoint& checkpoint) override;
  void End(RunEnding ending, std::string_view why) override;

 private:
  explicit WandbTracker(std::unique_ptr<Sidecar> sidecar) : sidecar_(std::move(sidecar)) {}
  const std::unique_ptr<Sidecar> sidecar_;
  bool ended_ = false;
};

}  // namespace millrace::tracking
