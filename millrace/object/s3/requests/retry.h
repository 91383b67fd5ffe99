// When a failed request is worth another try, and how long to wait before it.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "millrace/base/clock.h"
#include "millrace/base/hash/random.h"
#include "millrace/base/threads/sync.h"
#include "millrace/http/client/request.h"

namespace millrace::object::s3 {

/// What an answer that is no success says.
struct Refusal {
  Code code;                     ///< IsRetryable(code) decides about another try
  std::string s3_code;           ///< "SlowDown"; empty when the answer had no body
  std::string message;           ///< for the user, with status, S3's code and request id
  std::string region;            ///< where the bucket is, if the answer says so
  std::string location;          ///< where a redirect leads
  std::optional<Duration> wait;  ///< from Retry-After
  /// May the request have been carried out all the same?
  bool ambiguous = false;
};
/// The one place where statuses and S3's error codes become our codes.
Refusal Classify(const http::Response& response, WallTime now);
/// The same for an error that comes without a status: one key's of DeleteObjects.
Code CodeFromS3(std::string_view s3_code);

/// Bounds what retries may add to the load of an endpoint in trouble: retries take from it, successes give back. A
/// retry that finds it empty is put off by seconds, so that an outage is ridden out without a storm. Shared by all
/// requests of an endpoint. Thread-safe.
class RetryBudget {
 public:
  explicit RetryBudget(double capacity = 500) : capacity_(capacity), tokens_(capacity) {}
  bool TakeForRetry() MR_EXCLUDES(mutex_);
  void Succeeded() MR_EXCLUDES(mutex_);

 private:
  static constexpr double kRetryCost = 5, kSuccessGain = 1;
  const double capacity_;
  Mutex mutex_;
  double tokens_ MR_GUARDED_BY(mutex_);
};

/// Says when a user should be told that operations are tried again: at the first wait by which one has taken a second,
/// then every ten seconds, however many operations wait. Shared by all requests of an endpoint. Thread-safe.
class RetryNotice {
 public:
  /// `taken`: by the operation when its next try begins.
  bool IsDue(TimePoint now, Duration taken) MR_EXCLUDES(mutex_);

 private:
  static constexpr Duration kPatience = std::chrono::seconds(1), kEvery = std::chrono::seconds(10);
  Mutex mutex_;
  std::optional<TimePoint> last_ MR_GUARDED_BY(mutex_);
};

/// Exponential back-off with full jitter (each wait is uniform between nothing and a bound that doubles), so that
/// clients that failed together do not come back together. Thread-safe.
class Backoff {
 public:
  explicit Backoff(std::uint64_t seed) : random_(seed) {}
  /// The wait before try number `attempt` + 1, after `attempt` ≥ 1 failed ones. At least `asked`, within
  /// reason: some servers ask for a minute each time without looking.
  Duration Wait(int attempt, Code code, std::optional<Duration> asked) MR_EXCLUDES(mutex_);
  /// The wait for a retry that the budget does not cover: 5 to 10 s.
  Duration LongWait() MR_EXCLUDES(mutex_);

 private:
  Mutex mutex_;
  Random random_ MR_GUARDED_BY(mutex_);
};

}  // namespace millrace::object::s3
