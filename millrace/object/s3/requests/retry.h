// The retry policy: which failed requests are sent again, and how long to wait before.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "millrace/base/clock.h"
#include "millrace/base/hash/random.h"
#include "millrace/base/threads/sync.h"
#include "millrace/http/client/request.h"

namespace millrace::object::s3 {

/// The meaning of a response without success.
struct Refusal {
  Code code;                     ///< IsRetryable(code) decides whether to retry
  std::string s3_code;           ///< "SlowDown"; empty if the response had no body
  std::string message;           ///< for the user, with status, S3's code and request id
  std::string region;            ///< the bucket's region, if the response names it
  std::string location;          ///< where a redirect leads
  std::optional<Duration> wait;  ///< from Retry-After
  /// Whether the request may have taken effect.
  bool ambiguous = false;
};
/// Maps statuses and S3's error codes to our codes. No other function does.
Refusal Classify(const http::Response& response, WallTime now);
/// Maps an S3 error code without a status, as DeleteObjects returns for a key.
Code CodeFromS3(std::string_view s3_code);

/// A token bucket that bounds the load that retries add to a failing endpoint. Retries take tokens, successes return
/// them. A retry without tokens waits for seconds, so that calls survive an outage without a storm of retries. All
/// requests of an endpoint share one. Thread-safe.
class RetryBudget {
 public:
  /// 500 tokens, 5 for a retry, 1 for a success: the values of the AWS SDKs' standard retry mode.
  explicit RetryBudget(double capacity = 500) : capacity_(capacity), tokens_(capacity) {}
  /// Takes the tokens of a retry. False if there are too few.
  bool TakeForRetry() MR_EXCLUDES(mutex_);
  void Succeeded() MR_EXCLUDES(mutex_);

 private:
  static constexpr double kRetryCost = 5, kSuccessGain = 1;
  const double capacity_;
  Mutex mutex_;
  double tokens_ MR_GUARDED_BY(mutex_);
};

/// Decides when to warn the user about retries: when the first operation has taken a second, then every ten seconds,
/// for all operations together. All requests of an endpoint share one. Thread-safe.
class RetryNotice {
 public:
  /// `taken`: how long the operation will have taken when its next try begins.
  bool IsDue(TimePoint now, Duration taken) MR_EXCLUDES(mutex_);

 private:
  // Guesses: a user begins to wonder after a second, and one line in ten seconds does not flood a terminal.
  static constexpr Duration kPatience = std::chrono::seconds(1), kEvery = std::chrono::seconds(10);
  Mutex mutex_;
  std::optional<TimePoint> last_ MR_GUARDED_BY(mutex_);
};

/// Exponential back-off with full jitter: each wait is uniform between zero and a bound that doubles, so that clients
/// that failed together do not retry together. Thread-safe.
class Backoff {
 public:
  explicit Backoff(std::uint64_t seed) : random_(seed) {}
  /// The wait before try `attempt` + 1. At least `asked`, but at most 20 s of it, because some servers always ask for a
  /// minute. REQUIRES: attempt >= 1.
  Duration Wait(int attempt, Code code, std::optional<Duration> asked) MR_EXCLUDES(mutex_);
  /// The wait for a retry that the budget does not cover: 5 to 10 s.
  Duration LongWait() MR_EXCLUDES(mutex_);

 private:
  Mutex mutex_;
  Random random_ MR_GUARDED_BY(mutex_);
};

}  // namespace millrace::object::s3
