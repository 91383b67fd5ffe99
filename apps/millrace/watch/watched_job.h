// Reads the state of a job for `millrace top`: from the job's folder on this machine, a rank's metrics server, or the
// folder of the run in a bucket.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/millrace/cli/cli.h"
#include "apps/millrace/jobs/bucket_jobs.h"
#include "millrace/base/result.h"
#include "millrace/history/job_summary.h"
#include "millrace/history/run_history.h"
#include "millrace/http/client/client.h"

namespace millrace::cli {

/// The state of a job at one moment.
struct WatchedJob {
  history::JobSummary job;
  history::RunHistory history;  ///< empty until rank 0 has written one
};

/// Reads one job again and again. One thread at a time.
class JobWatcher {
 public:
  /// `target` is a job's name on this machine, the address of a rank's metrics server (http://…), or the URL of a run's
  /// folder (log.url). Empty: the job of this machine that runs. `key_file` has the key of a metrics server; empty:
  /// none. REQUIRES: `context` outlives the watcher. Errors: kInvalidArgument if no job or several jobs run; those of
  /// reading the key.
  static Result<JobWatcher> Open(const Context& context, std::string target, const std::string& key_file);

  /// Errors: kNotFound if there is no such job; those of the store or the server.
  Result<WatchedJob> Read();

 private:
  enum class Source { kFolder, kServer, kStore };
  JobWatcher(const Context& context, Source source, std::string target)
      : context_(&context), source_(source), target_(std::move(target)) {}
  Result<WatchedJob> ReadServer();
  Result<WatchedJob> ReadStore();

  const Context* context_;
  Source source_;
  std::string target_, key_;
  std::unique_ptr<http::Client> client_;   ///< of kServer
  std::optional<RunFolderReader> folder_;  ///< of kStore
};

}  // namespace millrace::cli
