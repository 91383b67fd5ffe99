// Credentials at hand for every request, renewed before they expire.
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

/// Hands out the credentials of one source. Those that are good are given at once; within five minutes of their end a
/// thread fetches new ones while the old still serve; requests wait only when there are none. Sources that never change
/// cost no thread. Thread-safe. Destruction cancels a fetch and refuses those who wait.
class CredentialCache {
 public:
  using Taker = std::move_only_function<void(Result<Credentials>)>;

  CredentialCache(std::unique_ptr<CredentialSource> source, Clock& clock, Logger log);
  ~CredentialCache();

  /// Runs `taker` before returning, or later on the cache's thread. It must not block.
  void Get(Taker taker) MR_EXCLUDES(mutex_);
  /// Blocks while there are none.
  Result<Credentials> GetNow() MR_EXCLUDES(mutex_);
  /// The server says that the credentials with this key have expired. False when fetching again cannot help.
  bool Renew(const std::string& access_key) MR_EXCLUDES(mutex_);
  /// From now on those of another source, as soon as it has given some; until then the old ones serve on.
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
  std::shared_ptr<CredentialSource> source_ MR_GUARDED_BY(mutex_);  ///< the thread fetches from it unlocked
  std::optional<Credentials> current_ MR_GUARDED_BY(mutex_);
  bool fetch_wanted_ MR_GUARDED_BY(mutex_) = false;
  TimePoint next_early_try_ MR_GUARDED_BY(mutex_){};  ///< after a failed renewal the old ones serve on for a while
  std::vector<Taker> waiting_ MR_GUARDED_BY(mutex_);
  std::jthread thread_;
};

}  // namespace millrace::object::s3
