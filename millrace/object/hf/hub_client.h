// Sends requests to the hub: adds the token, follows redirects, retries.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "millrace/base/log.h"
#include "millrace/base/threads/sync.h"
#include "millrace/http/client/client.h"
#include "millrace/object/hf/repository.h"
#include "millrace/object/hf/settings.h"
#include "millrace/object/requests.h"
#include "millrace/object/s3/requests/retry.h"
#include "millrace/object/s3/requests/timers.h"

namespace millrace::object::hf {

/// A request about one repository.
struct HubRequest {
  const Repository* repository = nullptr;  ///< borrowed until completion
  std::string about;                       ///< "hf://OWNER/MODEL/file": for messages
  std::string method = "GET";
  std::string url;  ///< absolute, or below the endpoint if it begins with '/'
  http::Headers headers;
  std::string body;
  http::BodyTarget target{.max_collected = 64 * kMiB};  ///< far above a page of a listing (1,000 files)
  /// Where an earlier request of this kind was redirected to; tried first. Empty: nowhere.
  std::string redirected;
  /// Checks a successful response. kCorrupt leads to a retry, other errors end the request.
  std::move_only_function<Status(const http::Response&)> check;
};

struct HubOutcome {
  Result<http::Response> response;
  bool no_entry = false;   ///< the response is an error because there is no such file or folder
  std::string redirected;  ///< the address outside the hub that answered; empty if the hub did
};

/// Thread-safe. Must outlive its requests. The token goes to the endpoint's origin only: neither another host nor
/// another port nor an unencrypted address that the hub redirects to gets it.
class HubClient {
 public:
  struct Options {
    http::Client::Options http;
    int max_attempts = 10;  ///< as object/s3
    std::uint64_t jitter_seed = 0;
    Logger log;
  };
  HubClient(Settings settings, Options options, Clock& clock);

  /// Starts the request. `done` runs once, on a thread of the client or of the timers, or before the call returns.
  void Run(HubRequest request, Call call, std::move_only_function<void(HubOutcome)> done);

  /// For the requests that begin from now on.
  void SetToken(std::string token) MR_EXCLUDES(mutex_);
  const Settings& settings() const { return settings_; }  ///< without the token
  Clock& clock() const { return clock_; }

 private:
  struct Job;
  using JobPtr = std::unique_ptr<Job>;

  void Try(JobPtr job);
  void Send(JobPtr job, std::string url);
  void Receive(JobPtr job, Result<http::Response> response);
  void Retry(JobPtr job, Error error, std::optional<Duration> asked);
  void Finish(JobPtr job, Result<http::Response> response);
  std::string Token() MR_EXCLUDES(mutex_);

  const Settings settings_;
  const std::string origin_;  ///< of the endpoint
  const int max_attempts_;
  const Logger log_;
  Clock& clock_;
  s3::RetryBudget budget_;
  s3::Backoff backoff_;
  s3::RetryNotice notice_;
  Mutex mutex_;
  std::string token_ MR_GUARDED_BY(mutex_);
  // Last, because their threads use the other members until they are destroyed.
  s3::Timers timers_;
  http::Client http_;
};

}  // namespace millrace::object::hf
