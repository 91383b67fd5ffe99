// Posts a message to a webhook when a job starts, fails and ends.
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

/// Posts messages of JSON, on a thread of its own. A slow or absent server never delays the job. A message is tried
/// three times. After the first message that failed, each message is tried once. If the queue is full, the message is
/// dropped. The first failure is logged, without the URL, which may be a secret.
class Webhook {
 public:
  /// Returns null if the job has neither log.webhook nor log.webhook_file. Errors: those of reading the file;
  /// kInvalidArgument if its first line is not a URL.
  static Result<std::unique_ptr<Webhook>> Open(const jobs::Spec& spec, const std::string& ca_bundle, Logger log);
  /// Waits until every queued message is sent or has failed. A message takes 15 s at most, and 5 s after an earlier
  /// failure.
  ~Webhook();

  /// Queues a message for an event that people wait for: start, failure, straggler, done, failed, interrupted. Ignores
  /// other events. Call it on one thread.
  void PostEvent(const jobs::JobEvent& event);

 private:
  Webhook(std::string url, std::string job, const std::string& ca_bundle, Logger log);
  void Post(const std::string& body);

  // Constant after construction.
  const std::string url_, job_;
  const Logger log_;

  http::Client client_;
  bool failed_ = false;  ///< a message has failed; used only by the thread
  Channel<std::string> queue_;
  TaskScope thread_;  ///< last member: the thread uses the others
};

}  // namespace millrace::cli
