// Runs an S3 operation: finds its address and credentials, signs it, sends it, and retries it.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "millrace/base/log.h"
#include "millrace/base/threads/sync.h"
#include "millrace/http/client/client.h"
#include "millrace/object/requests.h"
#include "millrace/object/s3/credentials/credential_cache.h"
#include "millrace/object/s3/credentials/settings.h"
#include "millrace/object/s3/protocol/signer.h"
#include "millrace/object/s3/requests/dialect.h"
#include "millrace/object/s3/requests/operation_name.h"
#include "millrace/object/s3/requests/pace.h"
#include "millrace/object/s3/requests/retry.h"
#include "millrace/object/s3/requests/timers.h"

namespace millrace::object::s3 {

/// An operation of the S3 API, not yet addressed and signed.
struct Operation {
  OperationName name;
  std::string method = "GET";
  std::string bucket, key;  ///< either may be empty
  Query query;
  http::Headers headers;
  ByteSpan body;                                        ///< borrowed until completion
  http::BodySource* source = nullptr;                   ///< sent instead of `body`; borrowed until completion
  std::string own_body;                                 ///< sent instead of `body` unless empty
  http::BodyTarget target{.max_collected = 16 * kMiB};  ///< a page of 1,000 escaped keys has less
  /// The server works on objects before it answers in full: it may be silent for minutes, and a response with status
  /// 200 may contain an error document.
  bool error_may_follow_200 = false;
  /// Called before another try after a connection that broke. May make the operation ask for what is missing. Returns
  /// whether the try before brought part of it, and so is not counted as a failure.
  std::function<bool(Operation&)> go_on;
  /// Checks a successful response. kCorrupt leads to a retry, other errors end the operation.
  std::move_only_function<Status(const http::Response&)> check;

  bool is_write() const { return method == "PUT" || method == "POST"; }
};

/// The outcome of an operation.
struct Outcome {
  Result<http::Response> response;
  /// S3's error code ("NoSuchBucket"); empty if there was none.
  std::string s3_code;
  /// Whether the last try got a response.
  bool answered = false;
  /// Whether some failed try may have taken effect.
  bool ambiguous = false;
};

/// Runs the operations of one endpoint. Thread-safe. Its dependencies must outlive it, and it must outlive its
/// operations.
class Dispatcher {
 public:
  struct Dependencies {
    const Settings* settings;
    http::Client* client;
    CredentialCache* credentials;
    Timers* timers;
    Clock* clock;
    int most_at_once = 128;  ///< the limit of requests under way; lower while the endpoint refuses for load
    Logger log;
    std::uint64_t jitter_seed = 0;
  };
  explicit Dispatcher(Dependencies dependencies);

  /// Starts the operation; `done` runs once, on a thread of the client, the timers or the credentials, or before the
  /// call returns.
  void Run(Operation operation, Call call, std::move_only_function<void(Outcome)> done);

  /// Returns the wait before the next try, after `tries` of which the last failed with `error`. The wait is at least as
  /// long as the server `asked`. Returns the operation's final error if there shall be no further try: the error is
  /// permanent, the tries are used up, or the call ends before.
  Result<Duration> NextTry(int tries, const Error& error, const Call& call, std::optional<Duration> asked);
  /// Runs `work` on the thread of the timers, after `wait` or as soon as `stop` fires.
  void After(Duration wait, std::stop_token stop, std::move_only_function<void()> work) {
    with_.timers->After(wait, std::move(stop), std::move(work));
  }

  Result<std::string> Presign(std::string_view method, std::string_view bucket, std::string_view key,
                              Duration valid_for);
  const Settings& settings() const { return *with_.settings; }
  /// Returns what is known of the endpoint.
  Dialect& dialect() { return dialect_; }
  Clock& clock() const { return *with_.clock; }
  const Logger& log() const { return with_.log; }

 private:
  struct Job;
  using JobPtr = std::unique_ptr<Job>;

  void Try(JobPtr job);
  void Send(JobPtr job, const Credentials& credentials);
  void Receive(JobPtr job, Result<http::Response> response);
  void HandleRefusal(JobPtr job, const http::Response& response);
  /// Retries after a wait if NextTry allows it; else finishes the job with the error. Also finishes it if the endpoint
  /// has never answered and Settings::first_contact would be over.
  void Retry(JobPtr job, Error error, std::optional<Duration> wait);
  void GoOn(JobPtr job);
  void Finish(JobPtr job, Result<http::Response> response);
  bool Relocate(Job& job, const Refusal& refusal);
  bool FollowRedirect(Job& job, const Refusal& refusal);
  bool AdjustClock(Job& job, const http::Response& response);
  bool RenewCredentials(Job& job, const Refusal& refusal);
  bool LeaveOutChecksums(Job& job, const Refusal& refusal, int status);
  bool MayMatchWithoutQuotes(const Job& job, const Refusal& refusal) const;
  void CompareETag(JobPtr job, Error failed);
  bool signs_payloads() const { return with_.settings->scheme != "https" && !with_.settings->loopback; }
  Status Adapt(Operation& operation) const;
  Result<std::string> PayloadHash(const Operation& operation) const;
  Error NobodyThere(const Error& error) const;
  std::string EndpointUrl() const { return with_.settings->scheme + "://" + with_.settings->authority; }
  void Pace(bool throttled) MR_EXCLUDES(pace_mutex_);
  void UploadBegan() MR_EXCLUDES(pace_mutex_);
  void UploadEnded(std::uint64_t bytes) MR_EXCLUDES(pace_mutex_);
  const Signer& SignerFor(const std::string& region) MR_EXCLUDES(mutex_);
  std::string RegionOf(const std::string& bucket) MR_EXCLUDES(mutex_);
  WallTime ServerTime() const;

  // Constant after construction.
  const Dependencies with_;

  RetryBudget budget_;
  Backoff backoff_;
  RetryNotice notice_;
  std::atomic<Duration::rep> clock_offset_{
      0};  ///< how far the server's clock is ahead; 0 until it refuses a signature for that

  Dialect dialect_;
  std::atomic<bool> reached_{false};  ///< the endpoint has answered
  std::atomic<bool> paced_{false};    ///< the limit is below most_at_once
  Mutex pace_mutex_;
  AdaptiveLimit pace_ MR_GUARDED_BY(pace_mutex_);
  UploadPace uploads_ MR_GUARDED_BY(pace_mutex_);

  Mutex mutex_;
  std::map<std::string, std::unique_ptr<Signer>> signers_ MR_GUARDED_BY(mutex_);  ///< by region
  std::map<std::string, std::string> regions_
      MR_GUARDED_BY(mutex_);  ///< of buckets in other regions than the configured one
};

}  // namespace millrace::object::s3
