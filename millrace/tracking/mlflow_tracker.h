// A run in MLflow.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "millrace/base/clock.h"
#include "millrace/base/log.h"
#include "millrace/base/result.h"
#include "millrace/base/threads/channel.h"
#include "millrace/base/threads/task_scope.h"
#include "millrace/tracking/mlflow_client.h"
#include "millrace/tracking/options.h"
#include "millrace/tracking/tracker.h"

namespace millrace::tracking {

/// All attempts of a run are one run of MLflow: the first one makes it with the tag "millrace.run", and later ones look
/// for the tag. MLFLOW_RUN_ID names another run to go on with. A thread sends what is queued about once a second.
///
/// A parameter of MLflow never changes. If a later attempt has another value, the run gets the tag "changed.NAME".
/// Numbers that a resumed run logs again for a step stand beside the earlier ones.
class MlflowTracker final : public Tracker {
 public:
  /// Makes the experiment if there is none, and the run, and logs its parameters. Blocks for half a minute at most.
  /// REQUIRES: `clock` outlives the tracker.
  /// Errors: those of MlflowAccess::Find() and MlflowClient::Call(); kPreconditionFailed if the experiment was deleted.
  static Result<std::unique_ptr<MlflowTracker>> Open(const MlflowOptions& options, const TrackingOptions& shared,
                                                     const TrackedRun& run, const Environment& environment,
                                                     Clock& clock, Logger log);
  ~MlflowTracker() override;

  void AddMetrics(std::uint64_t step, const Metrics& metrics) override;
  void AddCheckpoint(const TrackedCheckpoint& checkpoint) override;
  void End(RunEnding ending, std::string_view why) override;

  /// Returns the id that MLflow gave the run.
  const std::string& run_id() const { return run_id_; }

 private:
  /// The content of one log call.
  struct Entry {
    Json metrics = Json::array(), tags = Json::array();
  };

  MlflowTracker(MlflowAccess access, Clock& clock, Logger log)
      : clock_(clock), log_(log), client_(std::move(access), clock, std::move(log)) {}
  Result<std::string> ExperimentNamed(const std::string& name, Deadline deadline);
  Status FindRun(const MlflowOptions& options, const TrackedRun& run, const Environment& environment,
                 Deadline deadline);
  Status CreateRun(const std::string& experiment, const MlflowOptions& options, const TrackedRun& run,
                   Deadline deadline);
  Status LogParameters(const Parameters& parameters, Deadline deadline);
  Status LogNewParameters(const std::vector<std::pair<std::string, std::string>>& fresh, Deadline deadline);
  std::int64_t NowMs() const;
  void Queue(Entry entry);
  void Run();
  void SendBatch(const Entry& entry);
  Deadline SendDeadline() const;
  void SetEnd();

  Clock& clock_;
  const Logger log_;
  MlflowClient client_;  ///< of Open(), then of the thread
  std::string run_id_;   ///< constant after Open()

  Channel<Entry> queue_{4096};  // each has some hundred bytes
  std::atomic<std::uint64_t> dropped_ = 0, lost_ = 0;
  bool failed_ = false;  ///< of the thread
  std::stop_source ending_;
  std::optional<std::pair<RunEnding, std::string>> end_;  ///< set before the queue is closed, read after
  std::atomic<TimePoint> give_up_ = TimePoint::max();
  TaskScope thread_;  ///< last: uses the others
};

}  // namespace millrace::tracking
