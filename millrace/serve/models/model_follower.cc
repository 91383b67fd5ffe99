#include "millrace/serve/models/model_follower.h"

#include <utility>

namespace millrace::serve {

ModelFollower::ModelFollower(ServedScheduler& served, std::uint64_t step, Clock& clock, Options options)
    : served_(served), clock_(clock), options_(std::move(options)), counters_{.step = step} {
  scope_.Spawn("follow", [this](std::stop_token stop) { Run(std::move(stop)); });
}

FollowCounters ModelFollower::counters() const {
  MutexLock lock(mutex_);
  return counters_;
}

void ModelFollower::Run(std::stop_token stop) {
  while (clock_.SleepFor(options_.every, stop)) {
    if (served_.DropEnded() == 0) Look(stop);
  }
}

/// Takes a newer checkpoint if there is one.
void ModelFollower::Look(std::stop_token stop) {
  const std::uint64_t served = counters().step;
  const auto newest = options_.find_newest(stop);
  if (!newest) {
    if (!stop.stop_requested())
      options_.log.Warning("cannot look for newer checkpoints", {{"error", newest.error()}, {"serving_step", served}});
    return;
  }
  if (!*newest || **newest <= served || **newest == refused_) return;
  const std::uint64_t step = **newest;
  auto next = options_.load(step, stop);
  if (stop.stop_requested()) return;
  if (!next) {
    if (!IsRetryable(next.error().code())) refused_ = step;
    options_.log.Warning("a newer checkpoint cannot be served; keeping the old one",
                         {{"step", step}, {"serving_step", served}, {"error", next.error()}});
    MutexLock lock(mutex_);
    ++counters_.failed_reloads;
    return;
  }
  served_.Replace(*std::move(next));
  {
    MutexLock lock(mutex_);
    counters_.step = step;
    ++counters_.reloads;
  }
  options_.log.Info("serving a newer checkpoint", {{"step", step}, {"before", served}});
}

}  // namespace millrace::serve
