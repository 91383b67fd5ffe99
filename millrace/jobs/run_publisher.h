// Keeps the folder of a run in a bucket up to date while a job runs.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "millrace/base/clock.h"
#include "millrace/base/json.h"
#include "millrace/base/threads/sync.h"
#include "millrace/base/threads/task_scope.h"
#include "millrace/jobs/run_folder.h"

namespace millrace::jobs {

/// Writes in a thread of its own: at once, so that readers know of the run, then at most once an interval, and once
/// more at the end. A bucket that is away never holds the job up. Thread-safe.
class RunPublisher {
 public:
  struct Options {
    RunFolderWriter::Options folder;
    Json status = Json::object();                  ///< the first
    Duration interval = std::chrono::seconds(10);  ///< a reader's view is at most so old; 6 requests a minute and more
    Duration patience = std::chrono::seconds(30);  ///< for one round of writes, also for the last
    /// Called once, in the publisher's thread, when writing fails for the first time.
    std::function<void(const Error&)> on_failure;
    Clock* clock = &SystemClock();  ///< must outlive the publisher
  };
  RunPublisher(object::Location folder, Options options);
  /// Writes what is left, for at most Options::patience; for 5 s if the bucket was away before.
  ~RunPublisher();

  /// Adds an event. It needs its members "event" and "time".
  void NoteEvent(Json event);
  /// Replaces the status.
  void NoteStatus(Json status);

 private:
  void Run(std::stop_token stop);
  Status WriteOnce(Duration patience);

  const Options options_;
  RunFolderWriter writer_;  ///< of the publisher's thread
  bool warned_ = false;     ///< of the publisher's thread
  Mutex mutex_;
  std::vector<Json> events_ MR_GUARDED_BY(mutex_);
  Json status_ MR_GUARDED_BY(mutex_);
  TaskScope thread_;  ///< last: uses the others
};

}  // namespace millrace::jobs
