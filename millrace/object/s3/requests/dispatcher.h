// From an S3 operation to its answer: address, credentials, signature, tries.
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
#include "millrace/object/s3/protocol/signer.h"
#include "millrace/object/s3/requests/pace.h"
#include "millrace/object/s3/requests/retry.h"
#include "millrace/object/s3/requests/timers.h"
#include "millrace/object/s3/settings/settings.h"

namespace millrace::object::s3 {

/// One operation of the S3 API, before it is addressed and signed.
struct Operation {
  std::string_view name;  ///< "PutObject": for messages; a literal
  std::string method = "GET";
  std::string bucket, key;  ///< either may be empty
  Query query;
  http::Headers headers;
  ByteSpan body;                       ///< borrowed until completion
  http::BodySource* source = nullptr;  ///< sent instead of `body`; likewise borrowed
  std::string own_body;                ///< sent instead of `body` unless empty
  http::BodyTarget target{.max_collected = 16 * kMiB};
  /// A 200 answer of this operation may hold an error document.
  bool error_may_follow_200 = false;
  /// What else a good answer must fulfil; kCorrupt is worth another try.
  std::move_only_function<Status(const http::Response&)> check;
};

/// An operation's end.
struct Outcome {
  Result<http::Response> response;
  /// S3's own code of the error, if it gave one ("NoSuchBucket").
  std::string s3_code;
  /// Did the last try get an answer?
  bool answered = false;
  /// Was there a failed try of which it is unknown whether it took effect?
  bool ambiguous = false;
};

/// Runs operations of one endpoint. Thread-safe. Everything it is given must outlive it, and it must outlive its
/// operations.
class Dispatcher {
 public:
  struct Parts {
    const Settings* settings;
    http::Client* client;
    CredentialCache* credentials;
    Timers* timers;
    Clock* clock;
    int most_at_once = 128;  ///< requests under way; fewer when the endpoint complains
    Logger log;
    std::uint64_t jitter_seed = 0;
  };
  explicit Dispatcher(Parts parts);

  /// Starts the operation; `done` runs once, on a thread of the client, the timers or the credentials, or before the
  /// call returns.
  void Run(Operation operation, Call call, std::move_only_function<void(Outcome)> done);

  /// How long to wait before another try after `tries` that ended in `error`, at least as long as the server `asked`;
  /// an Error, the one to give up with, when there shall be none: the error is for good, the tries or the endpoint's
  /// budget are used up, or the call ends before.
  Result<Duration> NextTry(int tries, const Error& error, const Call& call, std::optional<Duration> asked);
  /// Runs `work` on the timers' thread after the wait, or as soon as `stop` fires.
  void After(Duration wait, std::stop_token stop, std::move_only_function<void()> work) {
    parts_.timers->After(wait, std::move(stop), std::move(work));
  }

  Result<std::string> Presign(std::string_view method, std::string_view bucket, std::string_view key,
                              Duration valid_for);
  const Settings& settings() const { return *parts_.settings; }
  /// May a body's checksum follow it? Where the payload need not be signed, and the endpoint has shown itself to be one
  /// that is known to understand it: others might store the coding with the bytes.
  bool takes_trailers() const { return trailers_.load(std::memory_order_relaxed) == Trailers::kTaken; }
  /// The endpoint has refused such a body.
  void ForgoTrailers() { trailers_.store(Trailers::kRefused, std::memory_order_relaxed); }
  Clock& clock() const { return *parts_.clock; }

 private:
  struct Job;
  using JobPtr = std::unique_ptr<Job>;

  void Try(JobPtr job);
  void Send(JobPtr job, const Credentials& credentials);
  void Receive(JobPtr job, Result<http::Response> response);
  void Refused(JobPtr job, const http::Response& response);
  /// Tries again after a wait, if that is allowed; else ends the job with the error.
  void Again(JobPtr job, Error error, std::optional<Duration> wait);
  void Finish(JobPtr job, Result<http::Response> response);
  bool Relocate(Job& job, const Refusal& refusal);
  bool Follow(Job& job, const Refusal& refusal);
  bool AdjustClock(Job& job, const http::Response& response);

  enum class Trailers { kUnknown, kTaken, kRefused };
  bool signs_payloads() const { return parts_.settings->scheme != "https" && !parts_.settings->loopback; }
  void LearnServer(const http::Response& response);
  Result<std::string> PayloadHash(const Operation& operation) const;
  void Pace(bool throttled) MR_EXCLUDES(pace_mutex_);
  void UploadBegan() MR_EXCLUDES(pace_mutex_);
  void UploadEnded(std::uint64_t bytes) MR_EXCLUDES(pace_mutex_);
  const Signer& SignerFor(const std::string& region) MR_EXCLUDES(mutex_);
  std::string RegionOf(const std::string& bucket) MR_EXCLUDES(mutex_);
  WallTime ServerTime() const;

  const Parts parts_;
  RetryBudget budget_;
  Backoff backoff_;
  RetryNotice notice_;
  std::atomic<Duration::rep> clock_offset_{0};  ///< what the server's clock is ahead, once it has complained

  std::atomic<Trailers> trailers_{Trailers::kUnknown};
  std::atomic<bool> paced_{false};  ///< fewer requests at once than allowed
  Mutex pace_mutex_;
  AdaptiveLimit pace_ MR_GUARDED_BY(pace_mutex_);
  UploadPace uploads_ MR_GUARDED_BY(pace_mutex_);

  Mutex mutex_;
  std::map<std::string, std::unique_ptr<Signer>> signers_ MR_GUARDED_BY(mutex_);  ///< by region
  std::map<std::string, std::string> regions_ MR_GUARDED_BY(mutex_);  ///< of buckets that are not where we thought
};

}  // namespace millrace::object::s3
