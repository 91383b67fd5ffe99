// Notes to a webhook when a job starts, fails and ends.
#pragma once

#include <memory>
#include <string>

#include "millrace/base/json.h"
#include "millrace/base/log.h"
#include "millrace/base/result.h"
#include "millrace/base/threads/channel.h"
#include "millrace/base/threads/task_scope.h"
#include "millrace/http/client/client.h"
#include "millrace/jobs/spec/spec.h"
#include "millrace/jobs/supervisor.h"

namespace millrace::cli {

/// Posts JSON in a thread of its own. A server that is slow or away never holds the job up: what does not fit the queue
/// is dropped, and each note is tried three times. The first failure is logged, without the URL, which may be a secret.
class Webhook {
 public:
  /// Returns null without log.webhook and log.webhook_file. Errors: those of reading the file; kInvalidArgument if its
  /// first line is no URL.
  static Result<std::unique_ptr<Webhook>> Open(const jobs::Spec& spec, const std::string& ca_bundle, Logger log);
  /// Waits for the notes under way, for a quarter of a minute at most.
  ~Webhook();

  /// Posts an event that people wait for: start, failure, straggler, done, failed, interrupted. Ignores others. One
  /// caller thread.
  void Note(const jobs::JobEvent& event);

 private:
  Webhook(std::string url, std::string job, const std::string& ca_bundle, Logger log);
  void Post(const std::string& body);

  // Constant after construction.
  const std::string url_, job_;
  const Logger log_;

  http::Client client_;
  bool failed_ = false;  ///< of the thread
  Channel<std::string> queue_;
  TaskScope thread_;  ///< last: uses the others
};

}  // namespace millrace::cli
