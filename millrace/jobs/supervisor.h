// Runs a job: carries out the decisions of the policy and reports events.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "millrace/base/clock.h"
#include "millrace/base/json.h"
#include "millrace/jobs/cost.h"
#include "millrace/jobs/launcher.h"
#include "millrace/jobs/policy.h"
#include "millrace/jobs/running_time.h"
#include "millrace/jobs/spec/spec.h"
#include "millrace/jobs/state.h"

namespace millrace::jobs {

/// An event of a job: a sentence for people and an object for scripts. The objects have "event", "time" and
///   start    {attempt, ranks}             the first attempt's ranks were started
///   waiting  {attempt, reason}            machines are away; the start is tried again
///   failure  {attempt, rank, reason, hang, step, silent_s, log}   a failure was noticed; the other ranks are killed
///   restart  {attempt, ranks, reason, delay_s}   the next attempt's ranks were started, delay_s after the failure
///   resumed  {attempt, step, resume_s}    the first step after a restart; resume_s: since the failure was noticed
///   node     {node, state, reason}        a machine is lost, unfit, set aside, runs in another's place, or is ready
///   again regroup  {step, reason}               the ranks were asked to save; they start again on other machines
///   stopping {step}                       the ranks were asked to save and leave
///   done | failed | interrupted  {reason, step, restarts}, and {cost, currency} if the price is known
struct JobEvent {
  enum class Level { kInfo, kWarning, kError };
  Level level = Level::kInfo;
  std::string sentence;
  Json object;
};

/// One run of one job. The thread that made the launcher must call Run.
class Supervisor {
 public:
  struct Options {
    std::string name;
    Policy::Options policy;
    CostSpec cost;
    double spent_before = 0;  ///< by earlier runs of the job
    /// Returns why this machine's ranks should save and end, to go on later: a sentence, or "". Asked all the time.
    std::function<std::string()> leave_reason;
    Duration status_interval = std::chrono::seconds(1);
    std::function<void(const JobEvent&)> on_event;
    /// Called when something has changed, and about every `status_interval`.
    std::function<void(const JobStatus&)> on_status;
  };
  /// Returns the options that a job file decides: names, restarts, times and costs. `in_sagemaker`: this machine is a
  /// container of SageMaker.
  static Options OptionsOf(const Spec& spec, bool in_sagemaker);
  /// REQUIRES: `launcher` and `clock` outlive this object.
  Supervisor(Launcher& launcher, Clock& clock, Random random, Options options);

  /// Blocks until the job is done or has failed, or, after `stop` has fired, until its ranks have ended.
  JobOutcome Run(std::stop_token stop);

 private:
  void Start();
  void NoteWaiting(const std::string& reason);
  void Terminate();
  void NoteSteps();
  void NoteNodes();
  void NoteSuspect();
  void CountCost();
  std::string LeaveReason();
  void NoteFailure();
  void NoteEnd();
  void Emit(JobEvent::Level level, std::string_view event, std::string sentence, Json fields);
  void Publish(std::string state, std::string message);

  Launcher& launcher_;
  Clock& clock_;
  const Options options_;
  Policy policy_;
  std::span<const RankState> ranks_;  ///< result of the launcher's latest Wait()
  CostMeter cost_;
  std::vector<NodeState> nodes_;  ///< as they were reported last
  int suspected_ = 0;             ///< the attempt whose suspect was dealt with
  std::string regroup_reason_;
  JobStatus status_;
  RunningTime running_time_;            ///< the policy's clock: leaves out freezes of this process
  std::optional<TimePoint> failed_at_;  ///< the last failure's time, until the running attempt makes its first step
  std::string waits_for_;               ///< why the last start failed that is tried again
  int noted_failure_ = 0;               ///< the attempt whose failure was reported
  TimePoint next_status_;
};

}  // namespace millrace::jobs
