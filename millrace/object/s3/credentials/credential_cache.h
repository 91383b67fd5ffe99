// Keeps credentials ready for every request and renews them before they expire.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "millrace/base/log.h"
#include "millrace/base/threads/sync.h"
#include "millrace/object/s3/credentials/credentials.h"

namespace millrace::object::s3 {

/// Caches the credentials of one source. Returns valid credentials at once. In the last five minutes of their validity,
/// a thread fetches new ones while requests still use the old. Requests wait only if there are no valid credentials.
/// Sources that never change need no thread. Thread-safe. Destruction cancels a fetch and fails the requests that wait.
class CredentialCache {
 public:
  using Receiver = std::move_only_function<void(Result<Credentials>)>;

  CredentialCache(std::unique_ptr<CredentialSource> source, Clock& clock, Logger log);
  ~CredentialCache();

  /// Runs `receiver` before it returns, or later on the cache's thread. `receiver` must not block.
  void Get(Receiver receiver) MR_EXCLUDES(mutex_);
  /// Blocks until there are credentials.
  Result<Credentials> GetNow() MR_EXCLUDES(mutex_);
  /// Reports that the server calls the credentials with this key and session token expired. False if fetching again
  /// cannot help.
  bool Renew(const std::string& access_key, const std::string& session_token) MR_EXCLUDES(mutex_);
  /// Changes to another source. The old credentials stay in use until it has returned some.
  void Replace(std::unique_ptr<CredentialSource> source) MR_EXCLUDES(mutex_);

 private:
  void StartThread() MR_REQUIRES(mutex_);
  void Run(std::stop_token stop) MR_EXCLUDES(mutex_);
  bool Usable() const MR_REQUIRES(mutex_);
  bool RenewalDue() const MR_REQUIRES(mutex_);

  Clock& clock_;
  const Logger log_;

  mutable Mutex mutex_;
  CondVar wanted_;
  std::shared_ptr<CredentialSource> source_ MR_GUARDED_BY(mutex_);  ///< the thread fetches from it without the lock
  std::optional<Credentials> current_ MR_GUARDED_BY(mutex_);
  bool fetch_wanted_ MR_GUARDED_BY(mutex_) = false;
  TimePoint next_early_try_ MR_GUARDED_BY(mutex_){};  ///< after a failed renewal, no early renewal before this time
  std::vector<Receiver> waiting_ MR_GUARDED_BY(mutex_);
  std::jthread thread_;
};

}  // namespace millrace::object::s3
