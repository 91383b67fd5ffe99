// Runs a job: carries out what the policy decides, and tells what happens.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <stop_token>
#include <string>

#include "millrace/base/clock.h"
#include "millrace/base/json.h"
#include "millrace/jobs/launcher.h"
#include "millrace/jobs/policy.h"
#include "millrace/jobs/state.h"

namespace millrace::jobs {

/// Something that happened to a job: a sentence for people, an object for scripts. The objects have "event" and "time"
/// and
///   start    {attempt, ranks}             the first attempt's ranks were started
///   failure  {attempt, rank, reason, hang, step, silent_s, log}   noticed now; the other ranks are killed
///   restart  {attempt, ranks, reason, delay_s}   the next attempt's ranks were started, delay_s after the failure
///   resumed  {attempt, step, resume_s}    the first step after a restart; resume_s: since the failure was noticed
///   stopping {step}                       the ranks were asked to save and leave
///   done | failed | interrupted  {reason, step, restarts}
struct JobEvent {
  enum class Level { kInfo, kWarning, kError };
  Level level = Level::kInfo;
  std::string sentence;
  Json object;
};

/// One run of one job. The thread that calls Run must be the one that made the launcher.
class Supervisor {
 public:
  struct Options {
    std::string name;
    Policy::Options policy;
    Duration status_interval = std::chrono::seconds(1);
    std::function<void(const JobEvent&)> on_event;
    /// Called when something has changed, and about every `status_interval`.
    std::function<void(const JobStatus&)> on_status;
  };
  /// Launcher and clock must outlive it.
  Supervisor(Launcher& launcher, Clock& clock, Random random, Options options);

  /// Blocks until the job is done, has failed or, after `stop` fired, its ranks have left.
  Outcome Run(std::stop_token stop);

 private:
  void Start();
  void Terminate();
  void NoteSteps();
  void NoteFailure();
  void NoteEnd();
  void Emit(JobEvent::Level level, std::string_view event, std::string sentence, Json fields);
  void Publish(std::string state, std::string message);

  Launcher& launcher_;
  Clock& clock_;
  const Options options_;
  Policy policy_;
  std::span<const RankState> ranks_;  ///< the launcher's, as of its latest Wait
  JobStatus status_;
  std::optional<TimePoint> failed_at_;  ///< of the failure that the running attempt has not yet made good
  int noted_failure_ = 0;               ///< attempt whose failure was told
  TimePoint next_status_;
};

}  // namespace millrace::jobs
