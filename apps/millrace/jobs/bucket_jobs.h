// Jobs as their folders in a bucket show them (log.url), from any machine.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/millrace/cli/cli.h"
#include "millrace/base/result.h"
#include "millrace/jobs/run_publisher.h"
#include "millrace/jobs/spec/spec.h"
#include "millrace/jobs/state.h"

namespace millrace::cli {

/// Returns whether a command was given the URL or the path of a run's folder rather than the name of a job.
bool IsRunFolder(std::string_view name);

/// A run's folder that is read.
class RunFolderReader {
 public:
  static Result<RunFolderReader> Open(const Context& context, const std::string& url);
  /// The state is "lost" if the job is active and has not written its status for two minutes.
  Result<jobs::JobStatus> Status(const object::Call& call);
  /// Returns the content of an object in the folder, such as "history.json"; nothing if it is not there.
  Result<std::optional<std::string>> ReadObject(std::string_view name, std::uint64_t most_bytes,
                                                const object::Call& call);
  /// Prints a log of the run that Status() has found, from where the last call has stopped. Returns whether there is
  /// one.
  Result<bool> PrintLog(const Context& context, const std::string& name);

 private:
  std::unique_ptr<object::Connection> connection_;
  object::ReadLocation folder_;
  std::string run_;
  std::unique_ptr<jobs::RunLogReader> log_;
};

/// Returns the status of each run whose folder is in the folder at `url`.
Result<std::vector<jobs::JobStatus>> ListRunFolders(const Context& context, const std::string& url);

/// Prints a log of the run at `url`; with `follow`, until the job ends or `context.stop` fires.
/// Returns the job's status at the end.
Result<jobs::JobStatus> PrintRunLog(const Context& context, const std::string& url, const std::string& name,
                                    bool follow);

/// Keeps the folder of a run up to date, with the connection that it needs.
class RunFolderKeeper {
 public:
  RunFolderKeeper(std::unique_ptr<object::Connection> connection, std::unique_ptr<jobs::RunPublisher> publisher)
      : connection_(std::move(connection)), publisher_(std::move(publisher)) {}
  void NoteEvent(const Json& event) { publisher_->NoteEvent(event); }
  void NoteStatus(const jobs::JobStatus& status, std::string_view launcher);

 private:
  std::unique_ptr<object::Connection> connection_;
  std::unique_ptr<jobs::RunPublisher> publisher_;  ///< uses the connection
};

/// Returns nothing without log.url. `status` is the first. `on_failure` is called once, in another thread.
Result<std::unique_ptr<RunFolderKeeper>> KeepRunFolder(const Context& context, const jobs::Spec& spec,
                                                       const jobs::JobFolder& folder, const jobs::JobStatus& status,
                                                       std::function<void(const Error&)> on_failure);

}  // namespace millrace::cli
