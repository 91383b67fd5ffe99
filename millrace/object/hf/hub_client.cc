#include "millrace/object/hf/hub_client.h"

#include <algorithm>

#include "millrace/base/text.h"
#include "millrace/object/hf/refusal.h"
#include "millrace/object/rules.h"

namespace millrace::object::hf {
namespace {

constexpr int kMaxRedirects = 5;       // a file needs two: within the hub, and to the storage
constexpr int kMaxCorruptAnswers = 3;  // damage that repeats is not the network's

bool IsRedirect(int status) {
  return status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
}

/// The absolute URL of a Location header.
std::string Absolute(std::string_view location, std::string_view from) {
  if (location.starts_with("//")) return std::string(from.substr(0, from.find("//"))) + std::string(location);
  if (location.starts_with('/'))
    return std::string(from.substr(0, from.find('/', from.find("://") + 3))) + std::string(location);
  return std::string(location);
}

bool IsHttp(std::string_view url) { return url.starts_with("https://") || url.starts_with("http://"); }

Settings WithoutToken(Settings settings) {
  settings.token.clear();
  return settings;
}

}  // namespace

/// A request under way.
struct HubClient::Job {
  HubRequest request;
  Call call;
  std::move_only_function<void(HubOutcome)> done;
  std::string url;  ///< of the try under way
  bool token_sent = false, no_entry = false;
  int tries = 0, redirects = 0, corrupt_answers = 0;
  std::optional<TimePoint> first_failure;
};

HubClient::HubClient(Settings settings, Options options, Clock& clock)
    : settings_(WithoutToken(settings)),
      origin_(OriginOf(settings.endpoint)),
      max_attempts_(options.max_attempts),
      log_(options.log),
      clock_(clock),
      backoff_(options.jitter_seed),
      token_(std::move(settings.token)),
      timers_(clock),
      http_(std::move(options.http)) {}

void HubClient::SetToken(std::string token) {
  MutexLock lock(mutex_);
  token_ = std::move(token);
}

std::string HubClient::Token() {
  MutexLock lock(mutex_);
  return token_;
}

void HubClient::Run(HubRequest request, Call call, std::move_only_function<void(HubOutcome)> done) {
  auto job = std::make_unique<Job>(std::move(request), std::move(call), std::move(done));
  if (job->request.url.starts_with('/')) job->request.url = settings_.endpoint + job->request.url;
  Try(std::move(job));
}

void HubClient::Try(JobPtr job) {
  if (Status on = CheckCall(job->call, clock_); !on) return Finish(std::move(job), Fail(on.error()));
  ++job->tries;
  job->redirects = 0;
  std::string url = job->request.redirected.empty() ? job->request.url : job->request.redirected;
  Send(std::move(job), std::move(url));
}

void HubClient::Send(JobPtr job, std::string url) {
  const HubRequest& request = job->request;
  http::Request message{
      .method = request.method, .url = url, .headers = request.headers, .body = AsBytes(request.body)};
  message.hedge = request.method == "GET";
  job->url = std::move(url);
  const std::string token = OriginOf(job->url) == origin_ ? Token() : "";
  job->token_sent = !token.empty();
  if (job->token_sent) message.headers.Set("Authorization", "Bearer " + token);
  http::BodyTarget target = request.target;
  http::Call call{.stop = job->call.stop, .deadline = job->call.deadline};
  http_.Send(std::move(message), target, std::move(call),
             [this, job = std::move(job)](Result<http::Response> response) mutable {
               Receive(std::move(job), std::move(response));
             });
}

void HubClient::Receive(JobPtr job, Result<http::Response> response) {
  if (!response) {
    job->request.redirected.clear();  // the next try asks the hub
    return Retry(std::move(job), response.error(), std::nullopt);
  }
  if (IsRedirect(response->status)) {
    std::string next = Absolute(response->headers.Get("location"), job->url);
    const bool downgrade = job->url.starts_with("https://") && !next.starts_with("https://");
    if (!IsHttp(next) || downgrade || ++job->redirects > kMaxRedirects) {
      return Finish(std::move(job), Fail(Code::kUnsupported, "the hub redirects to an address that is not followed"));
    }
    return Send(std::move(job), std::move(next));
  }
  const bool of_hub = OriginOf(job->url) == origin_;
  if (response->status >= 300) {
    Refusal refusal = of_hub ? Classify(*response, *job->request.repository, settings_, job->token_sent, clock_.Wall())
                             : ClassifyStorage(*response, clock_.Wall());
    job->no_entry = refusal.no_entry;
    job->request.redirected.clear();
    return Retry(std::move(job), Error(refusal.code, std::move(refusal.message)), refusal.wait);
  }
  if (job->request.check) {
    if (Status good = job->request.check(*response); !good) {
      const bool worth_it = good.error().code() == Code::kCorrupt && ++job->corrupt_answers < kMaxCorruptAnswers;
      if (!worth_it) return Finish(std::move(job), Fail(good.error()));
      return Retry(std::move(job), good.error().WithCode(Code::kUnavailable), std::nullopt);
    }
  }
  budget_.Succeeded();
  Finish(std::move(job), std::move(response));
}

void HubClient::Retry(JobPtr job, Error error, std::optional<Duration> asked) {
  if (!IsRetryable(error.code()) || job->tries >= max_attempts_) return Finish(std::move(job), Fail(std::move(error)));
  Duration wait = backoff_.Wait(job->tries, error.code(), asked);
  if (!budget_.TakeForRetry()) wait = std::max(wait, backoff_.LongWait());
  const TimePoint now = clock_.Now();
  // Waiting until the deadline would only hide this error.
  if (!job->call.deadline.infinite() && now + wait >= job->call.deadline.at()) {
    return Finish(std::move(job),
                  Fail(error.Context("no time left for another try").WithCode(Code::kDeadlineExceeded)));
  }
  const TimePoint since = job->first_failure.value_or(now);
  job->first_failure = since;
  if (notice_.IsDue(now, now - since + wait)) {
    log_.Warning(
        "the hub does not answer as it should; trying again",
        {{"url", job->request.about}, {"tries", job->tries}, {"next_in", FormatDuration(wait)}, {"error", error}});
  }
  std::stop_token stop = job->call.stop;
  timers_.After(wait, std::move(stop), [this, job = std::move(job)]() mutable { Try(std::move(job)); });
}

void HubClient::Finish(JobPtr job, Result<http::Response> response) {
  HubOutcome outcome{.response = std::move(response), .no_entry = job->no_entry};
  if (outcome.response && OriginOf(job->url) != origin_) outcome.redirected = std::move(job->url);
  if (!outcome.response) {
    std::string what = job->request.about;
    if (job->tries > 1) what += fmt::format(" (tried {} times)", job->tries);
    outcome.response = Fail(outcome.response.error().Context(std::move(what)));
  }
  auto done = std::move(job->done);
  job.reset();
  done(std::move(outcome));
}

}  // namespace millrace::object::hf
