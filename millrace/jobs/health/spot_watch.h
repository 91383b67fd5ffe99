// Notices that Amazon takes a spot machine away.
#pragma once

#include <optional>
#include <string>
#include <thread>

#include "millrace/base/clock.h"
#include "millrace/base/threads/sync.h"
#include "millrace/jobs/health/finding.h"

namespace millrace::jobs {

/// Asks the metadata service of EC2 whether this machine is about to be stopped, terminated or hibernated. A thread
/// asks every few seconds for spot/instance-action of the instance metadata, with the session tokens of its version 2.
/// Amazon announces that two minutes before. A service that does not answer has no notice. The destructor joins. Any
/// thread may call TerminationNotice().
class SpotWatch {
 public:
  /// Returns $AWS_EC2_METADATA_SERVICE_ENDPOINT, as the SDKs know it, or the address that EC2 documents.
  static std::string DefaultEndpoint();

  explicit SpotWatch(std::string endpoint, Duration interval = std::chrono::seconds(5));

  /// Returns a finding that fails, from the notice on: "EC2 will terminate this machine at 2026-01-31T12:00:00Z".
  std::optional<Finding> TerminationNotice() const MR_EXCLUDES(mutex_);

 private:
  void Watch(const std::string& endpoint, Duration interval, std::stop_token stop);

  mutable Mutex mutex_;
  std::optional<Finding> notice_ MR_GUARDED_BY(mutex_);
  std::jthread thread_;  ///< the last member: it ends first
};

}  // namespace millrace::jobs
