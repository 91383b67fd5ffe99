#include "millrace/object/s3/requests/dispatcher.h"

#include <algorithm>

#include "millrace/base/hash/digest.h"
#include "millrace/base/hash/text_encoding.h"
#include "millrace/base/text.h"
#include "millrace/object/access_point.h"
#include "millrace/object/rules.h"
#include "millrace/object/s3/protocol/checksums.h"
#include "millrace/object/s3/protocol/xml.h"

namespace millrace::object::s3 {
namespace {

constexpr std::size_t kMaxKnownRegions = 1000;  // more buckets than a process uses; bounds the memory
constexpr int kMaxCorruptAnswers = 3;           // damage that repeats is not the network's
constexpr int kMaxRedirects = 3;                // a service needs one; more is a loop
constexpr int kLeastAtOnce = 2;                 // keeps some work going under any load
/// How long a server may be silent that copies or assembles objects: 5 GiB at 20 MB/s take less. S3 sends white space
/// meanwhile, others nothing. A try that is given up is done again from the start.
constexpr Duration kServerWork = std::chrono::minutes(5);

/// No header may contain a line end, which would begin another header.
Status CheckHeaders(const http::Headers& headers) {
  for (const auto& [name, value] : headers) {
    bool clean = std::ranges::all_of(value, [](unsigned char c) { return c >= 0x20 && c != 0x7f; }) &&
                 std::ranges::all_of(name, [](unsigned char c) { return c > 0x20 && c < 0x7f && c != ':'; });
    if (!clean) {
      return Fail(Code::kInvalidArgument, "the header {} has control characters; only printable ones are allowed",
                  name.substr(0, 64));
    }
  }
  return {};
}

/// Returns whether the body is the page of a web server.
bool IsWebPage(std::string_view body) {
  constexpr std::size_t kBegin = 512;  // comments and blanks before the first tag
  const std::string begin = ToLower(body.substr(0, kBegin));
  return begin.contains("<!doctype html") || begin.contains("<html");
}

/// Returns whether a server of https refuses a request of http, in the words of Go's library, nginx and Apache.
bool AsksForHttps(const http::Response& response) {
  constexpr std::string_view kWords[] = {"HTTP request to an HTTPS server", "HTTP request was sent to HTTPS port",
                                         "plain HTTP to an SSL-enabled server"};
  return response.status == 400 &&
         std::ranges::any_of(kWords, [&](std::string_view words) { return response.body.contains(words); });
}

/// Returns whether S3 answers the operation with a document.
bool AsksForDocument(const Operation& operation) { return operation.method == "GET" && operation.key.empty(); }

bool IsRegionName(std::string_view region) {
  return !region.empty() && region.size() <= 32 && std::ranges::all_of(region, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-';
  });
}

}  // namespace

/// An operation under way.
struct Dispatcher::Job {
  Operation operation;
  Call call;
  std::move_only_function<void(Outcome)> done;
  TimePoint began;
  std::optional<TimePoint> first_failure;
  int tries = 0, corrupt_answers = 0, redirects = 0;
  std::optional<Settings::Address> redirected;  ///< the address that a redirect gave for this operation
  bool answered = false, ambiguous = false, relocated = false, clock_adjusted = false, renewed = false;
  bool without_checksums = false, without_quotes = false;  ///< the present try leaves them out to find out
  std::string access_key, session_token, s3_code;

  /// "PutObject s3://bucket/key"
  std::string Describe() const {
    std::string url = operation.bucket.empty() ? "" : " s3://" + operation.bucket;
    if (!operation.key.empty()) url += "/" + operation.key;
    return std::string(operation.name.text()) + url;
  }
};

Dispatcher::Dispatcher(Dependencies dependencies)
    : with_(std::move(dependencies)),
      backoff_(with_.jitter_seed),
      dialect_(/*trailers=*/!signs_payloads(), /*checksums=*/!with_.settings->checksums_when_required),
      pace_(std::min(kLeastAtOnce, with_.most_at_once), with_.most_at_once),
      uploads_(with_.most_at_once) {
  MutexLock lock(pace_mutex_);
  with_.client->LimitUploads(uploads_.limit());
}

void Dispatcher::Run(Operation operation, Call call, std::move_only_function<void(Outcome)> done) {
  auto job = std::make_unique<Job>(std::move(operation), std::move(call), std::move(done), with_.clock->Now());
  if (!job->operation.own_body.empty()) job->operation.body = AsBytes(job->operation.own_body);
  if (Status clean = CheckHeaders(job->operation.headers); !clean) return Finish(std::move(job), Fail(clean.error()));
  if (Status good = with_.settings->CheckBucket(job->operation.bucket); !good) {
    return Finish(std::move(job), Fail(good.error()));
  }
  http::Headers& headers = job->operation.headers;
  if (Status adapted = Adapt(job->operation); !adapted) return Finish(std::move(job), Fail(adapted.error()));
  if (!headers.Has("X-Amz-Content-Sha256")) {
    auto hash = PayloadHash(job->operation);
    if (!hash) return Finish(std::move(job), Fail(hash.error()));
    headers.Set("X-Amz-Content-Sha256", *std::move(hash));
  }
  if (with_.settings->request_payer) headers.Set("X-Amz-Request-Payer", "requester");
  if (const std::string& owner = with_.settings->expected_bucket_owner;
      !owner.empty() && !job->operation.bucket.empty())
    headers.Set("X-Amz-Expected-Bucket-Owner", owner);
  Try(std::move(job));
}

/// Leaves out what the endpoint is known not to take.
Status Dispatcher::Adapt(Operation& operation) const {
  if (dialect_.bare_etags() && operation.is_write()) UnquoteIfMatch(operation.headers);
  if (with_.settings->validation_when_required) operation.headers.Remove("X-Amz-Checksum-Mode");
  if (dialect_.takes_checksums()) return {};
  return ReplaceChecksums(operation.headers, operation.body, operation.source);
}

/// Returns the hash of the body, or UNSIGNED-PAYLOAD if TLS or the loopback interface protects the body. The hash would
/// cost both sides more CPU than the rest of the request.
Result<std::string> Dispatcher::PayloadHash(const Operation& operation) const {
  if (!signs_payloads()) return std::string(kUnsignedPayload);
  Hasher hasher(Hasher::Algorithm::kSha256);
  if (operation.source) {
    MR_TRY(ReadThrough(*operation.source, [&](ByteSpan bytes) { hasher.Update(bytes); }));
  } else {
    hasher.Update(operation.body);
  }
  return HexEncode(hasher.Finish());
}

void Dispatcher::Try(JobPtr job) {
  if (Status on = CheckCall(job->call, *with_.clock); !on) {
    return Finish(std::move(job), Fail(on.error()));
  }
  with_.credentials->Get([this, job = std::move(job)](Result<Credentials> credentials) mutable {
    if (!credentials) return Finish(std::move(job), Fail(credentials.error()));
    Send(std::move(job), *credentials);
  });
}

void Dispatcher::Send(JobPtr job, const Credentials& credentials) {
  const Operation& operation = job->operation;
  ++job->tries;
  job->access_key = credentials.access_key;
  job->session_token = credentials.session_token;
  std::string region = RegionOf(operation.bucket);
  Settings::Address address =
      job->redirected ? *job->redirected : with_.settings->AddressOf(operation.bucket, operation.key, region);
  std::string query = EncodeQuery(operation.query);
  http::Request request{.method = operation.method,
                        .url = address.Url(query),
                        .headers = operation.headers,
                        .body = operation.body,
                        .source = operation.source,
                        .hedge = operation.method == "GET" && !operation.key.empty()};
  request.upload = operation.method == "PUT" && request.body_size() > 0;
  if (operation.error_may_follow_200) request.longest_silence = kServerWork;
  if (request.upload) UploadBegan();
  if (!credentials.anonymous()) {
    Signable signable{.method = operation.method, .host = address.host, .path = address.path, .query = query};
    SignerFor(region).Sign(signable, operation.headers.Get("X-Amz-Content-Sha256"), credentials, ServerTime(),
                           request.headers);
  }
  // Not signed: proxies change this header.
  request.headers.Set("Accept-Encoding", "identity");
  http::BodyTarget target = operation.target;
  http::Call call{.stop = job->call.stop, .deadline = job->call.deadline};
  const std::uint64_t uploaded = request.upload ? request.body_size() : 0;
  with_.client->Send(std::move(request), target, std::move(call),
                     [this, uploaded, job = std::move(job)](Result<http::Response> response) mutable {
                       if (uploaded > 0) UploadEnded(uploaded);
                       Receive(std::move(job), std::move(response));
                     });
}

void Dispatcher::Receive(JobPtr job, Result<http::Response> response) {
  job->answered = response.has_value();
  if (!response) {
    job->ambiguous |= IsRetryable(response.error().code());
    const bool retryable = IsRetryable(response.error().code());
    if (retryable && job->operation.go_on && job->operation.go_on(job->operation)) return GoOn(std::move(job));
    return Retry(std::move(job), response.error(), std::nullopt);
  }
  reached_.store(true, std::memory_order_relaxed);
  dialect_.Learn(job->operation.headers, job->operation.is_write(), *response);
  bool failed = response->status >= 300 || (job->operation.error_may_follow_200 && IsErrorDocument(response->body));
  if (failed) return HandleRefusal(std::move(job), *response);
  if (AsksForDocument(job->operation) && !Trim(response->body).starts_with('<')) {
    return Finish(std::move(job),
                  Fail(Code::kInvalidArgument,
                       "{} answers, but not as S3 does; check that --endpoint-url is an S3 endpoint", EndpointUrl()));
  }
  if (AsksForDocument(job->operation) && IsWebPage(response->body)) {
    return Finish(std::move(job),
                  Fail(Code::kInvalidArgument,
                       "{} answers with a web page; check that --endpoint-url is an S3 endpoint", EndpointUrl()));
  }
  if (job->operation.check) {
    if (Status good = job->operation.check(*response); !good) {
      bool worth_it = good.error().code() == Code::kCorrupt && ++job->corrupt_answers < kMaxCorruptAnswers;
      if (!worth_it) return Finish(std::move(job), Fail(good.error()));
      return Retry(std::move(job), good.error().WithCode(Code::kUnavailable), std::nullopt);
    }
  }
  if (job->without_checksums && dialect_.takes_checksums()) {
    dialect_.ForgoChecksums();
    with_.log.Info("the endpoint refuses checksum headers; uploads are checked by Content-MD5 alone", {});
  }
  if (job->without_quotes) dialect_.ForgoQuotes();
  budget_.Succeeded();
  if (paced_.load(std::memory_order_relaxed)) Pace(/*throttled=*/false);
  Finish(std::move(job), std::move(response));
}

/// Adjusts the number of requests under way: fewer after a refusal for load, slowly more after successes.
void Dispatcher::Pace(bool throttled) {
  int before, now;
  {
    MutexLock lock(pace_mutex_);
    before = pace_.limit();
    throttled ? pace_.Throttled(with_.clock->Now()) : pace_.Succeeded();
    now = pace_.limit();
    paced_.store(!pace_.open(), std::memory_order_relaxed);
  }
  if (now == before) return;
  with_.client->LimitActive(now);
  if (throttled) with_.log.Info("the endpoint asks to slow down", {{"requests_at_once", now}});
}

void Dispatcher::UploadBegan() {
  MutexLock lock(pace_mutex_);
  uploads_.Began();
}

void Dispatcher::UploadEnded(std::uint64_t bytes) {
  MutexLock lock(pace_mutex_);
  const int before = uploads_.limit();
  uploads_.Ended(bytes, with_.clock->Now());
  if (uploads_.limit() == before) return;
  with_.client->LimitUploads(uploads_.limit());
  with_.log.Debug("uploads at once", {{"limit", uploads_.limit()}});
}

void Dispatcher::HandleRefusal(JobPtr job, const http::Response& response) {
  Refusal refusal = Classify(response, ServerTime());
  job->s3_code = refusal.s3_code;
  job->ambiguous |= refusal.ambiguous;
  if (refusal.code == Code::kThrottled) Pace(/*throttled=*/true);
  bool fixed = Relocate(*job, refusal) || FollowRedirect(*job, refusal) ||
               (refusal.s3_code == "RequestTimeTooSkewed" && AdjustClock(*job, response)) ||
               RenewCredentials(*job, refusal) || LeaveOutChecksums(*job, refusal, response.status);
  if (fixed) return Try(std::move(job));
  if (MayMatchWithoutQuotes(*job, refusal)) return CompareETag(std::move(job), Error(refusal.code, refusal.message));
  if (!refusal.region.empty() && refusal.region != RegionOf(job->operation.bucket)) {
    refusal.message += fmt::format("; the bucket is in {}", refusal.region);
  }
  if (AsksForHttps(response)) {
    refusal.message = fmt::format("{} speaks https: its URL begins with https://", EndpointUrl());
  } else if (refusal.s3_code.empty() && IsWebPage(response.body)) {
    refusal.message += fmt::format("; {} answers with a web page: is it an S3 endpoint?", EndpointUrl());
  }
  Retry(std::move(job), Error(refusal.code, refusal.message), refusal.wait);
}

Result<Duration> Dispatcher::NextTry(int tries, const Error& error, const Call& call, std::optional<Duration> asked) {
  if (!IsRetryable(error.code()) || tries >= with_.settings->max_attempts) return Fail(error);
  Duration wait = backoff_.Wait(tries, error.code(), asked);
  if (!budget_.TakeForRetry()) wait = std::max(wait, backoff_.LongWait());
  // Waiting until the deadline would only hide this error.
  if (!call.deadline.infinite() && with_.clock->Now() + wait >= call.deadline.at()) {
    return Fail(error.Context("no time left for another try").WithCode(Code::kDeadlineExceeded));
  }
  return wait;
}

void Dispatcher::Retry(JobPtr job, Error error, std::optional<Duration> asked) {
  auto wait = NextTry(job->tries, error, job->call, asked);
  if (!wait) return Finish(std::move(job), Fail(wait.error()));
  with_.log.Debug(
      "trying again",
      {{"operation", job->Describe()}, {"tries", job->tries}, {"wait", FormatDuration(*wait)}, {"error", error}});
  const TimePoint now = with_.clock->Now();
  const TimePoint since = job->first_failure.value_or(now);
  job->first_failure = since;
  const auto& patience = with_.settings->first_contact;
  if (patience && !reached_.load(std::memory_order_relaxed) && now - job->began + *wait > *patience) {
    return Finish(std::move(job), Fail(NobodyThere(error)));
  }
  if (notice_.IsDue(now, now - since + *wait)) {
    with_.log.Warning(
        "the store does not answer as it should; trying again",
        {{"operation", job->Describe()}, {"tries", job->tries}, {"next_in", FormatDuration(*wait)}, {"error", error}});
  }
  std::stop_token stop = job->call.stop;
  After(*wait, std::move(stop), [this, job = std::move(job)]() mutable { Try(std::move(job)); });
}

/// Tries again after a try that brought a part of the answer.
void Dispatcher::GoOn(JobPtr job) {
  job->tries = 1;
  const Duration wait = backoff_.Wait(job->tries, Code::kUnavailable, std::nullopt);
  with_.log.Debug("going on where the connection broke", {{"operation", job->Describe()}});
  std::stop_token stop = job->call.stop;
  After(wait, std::move(stop), [this, job = std::move(job)]() mutable { Try(std::move(job)); });
}

/// Returns the error of a first contact that failed.
Error Dispatcher::NobodyThere(const Error& error) const {
  return Error(error.code(),
               fmt::format("no S3 endpoint answers at {}: {} (--wait-for-endpoint 5m waits for one that still starts)",
                           EndpointUrl(), error.ToString()));
}

void Dispatcher::Finish(JobPtr job, Result<http::Response> response) {
  Outcome outcome{.response = std::move(response),
                  .s3_code = std::move(job->s3_code),
                  .answered = job->answered,
                  .ambiguous = job->ambiguous};
  if (!outcome.response) {
    std::string what = job->Describe();
    if (job->tries > 1) what += fmt::format(" (tried {} times)", job->tries);
    outcome.response = Fail(outcome.response.error().Context(std::move(what)));
  }
  auto done = std::move(job->done);
  job.reset();
  done(std::move(outcome));
}

/// True if the operation can be tried again with other credentials. The source may have replaced keys that the server
/// no longer knows; it is asked once for an operation.
bool Dispatcher::RenewCredentials(Job& job, const Refusal& refusal) {
  constexpr std::string_view kUnknown[] = {"InvalidAccessKeyId", "InvalidToken", "SignatureDoesNotMatch"};
  const bool expired = refusal.s3_code == "ExpiredToken" || refusal.s3_code == "TokenRefreshRequired";
  const bool unknown = !job.renewed && std::ranges::find(kUnknown, refusal.s3_code) != std::end(kUnknown);
  if (!(expired || unknown) || job.tries >= with_.settings->max_attempts) return false;
  job.renewed = true;
  return with_.credentials->Renew(job.access_key, job.session_token);
}

/// Some servers refuse requests with checksum headers that they do not know. True if the operation can be tried again
/// without.
bool Dispatcher::LeaveOutChecksums(Job& job, const Refusal& refusal, int status) {
  const bool may_be = status >= 400 && refusal.region.empty() &&
                      (refusal.code == Code::kInvalidArgument || refusal.code == Code::kUnsupported);
  if (!may_be || job.without_checksums || !dialect_.MayRefuseChecksums(job.operation.headers)) return false;
  job.without_checksums = true;
  return ReplaceChecksums(job.operation.headers, job.operation.body, job.operation.source).has_value();
}

/// Returns whether the condition of a write may have failed because of the quotes of its ETag: Ceph's gateway 16.2
/// compares them as if they were part of the ETag.
bool Dispatcher::MayMatchWithoutQuotes(const Job& job, const Refusal& refusal) const {
  return refusal.code == Code::kPreconditionFailed && !job.without_quotes && job.operation.is_write() &&
         job.operation.headers.Get("if-match").starts_with('"') && dialect_.quotes_unproven();
}

/// Asks for the ETag of the object that a write with If-Match was to replace. If the condition holds after all, tries
/// the write again without quotes; else ends it with `failed`.
void Dispatcher::CompareETag(JobPtr job, Error failed) {
  Operation head{.name = "HeadObject", .method = "HEAD", .bucket = job->operation.bucket, .key = job->operation.key};
  for (const auto& [name, value] : job->operation.headers) {
    if (ToLower(name).starts_with("x-amz-server-side-encryption-customer-")) head.headers.Set(name, value);
  }
  Call call = job->call;
  Run(std::move(head), std::move(call),
      [this, job = std::move(job), failed = std::move(failed)](Outcome found) mutable {
        const std::string_view wanted = job->operation.headers.Get("if-match");
        if (!found.response || found.response->headers.Get("etag") != wanted)
          return Finish(std::move(job), Fail(failed));
        job->without_quotes = true;
        UnquoteIfMatch(job->operation.headers);
        Try(std::move(job));
      });
}

/// Remembers the region of a bucket that is in another one. True if the operation can be tried again there.
bool Dispatcher::Relocate(Job& job, const Refusal& refusal) {
  const std::string& bucket = job.operation.bucket;
  if (job.relocated || bucket.empty() || IsArn(bucket) || !IsRegionName(refusal.region) ||
      refusal.region == RegionOf(bucket))
    return false;
  job.relocated = true;
  with_.log.Info("the bucket is in another region", {{"bucket", bucket}, {"region", refusal.region}});
  MutexLock lock(mutex_);
  if (regions_.size() >= kMaxKnownRegions) regions_.clear();
  regions_[bucket] = refusal.region;
  return true;
}

/// Takes the address of a redirect. True if the operation can be tried again there.
bool Dispatcher::FollowRedirect(Job& job, const Refusal& refusal) {
  if (refusal.location.empty() || job.redirects == kMaxRedirects) return false;
  auto address = with_.settings->AddressOfRedirect(refusal.location);
  if (!address) return false;
  ++job.redirects;
  job.redirected = std::move(address);
  return true;
}

bool Dispatcher::AdjustClock(Job& job, const http::Response& response) {
  auto date = ParseHttpDate(response.headers.Get("date"));
  if (job.clock_adjusted || !date) return false;
  job.clock_adjusted = true;
  Duration offset = *date - with_.clock->Wall();
  clock_offset_ = offset.count();
  with_.log.Warning("this machine's clock is wrong; signing with the server's",
                    {{"seconds", std::chrono::duration_cast<std::chrono::seconds>(offset).count()}});
  return true;
}

WallTime Dispatcher::ServerTime() const {
  return with_.clock->Wall() + std::chrono::duration_cast<WallTime::duration>(Duration(clock_offset_.load()));
}

std::string Dispatcher::RegionOf(const std::string& bucket) {
  if (IsArn(bucket)) {
    if (auto point = ParseAccessPoint(bucket)) return point->region;
  }
  MutexLock lock(mutex_);
  auto found = regions_.find(bucket);
  return found == regions_.end() ? with_.settings->region : found->second;
}

const Signer& Dispatcher::SignerFor(const std::string& region) {
  MutexLock lock(mutex_);
  std::unique_ptr<Signer>& signer = signers_[region];
  if (!signer) signer = std::make_unique<Signer>(region, "s3");
  return *signer;
}

Result<std::string> Dispatcher::Presign(std::string_view method, std::string_view bucket, std::string_view key,
                                        Duration valid_for) {
  constexpr Duration kLongest = std::chrono::days(7);  // the limit of Signature Version 4
  if (method != "GET" && method != "PUT")
    return Fail(Code::kInvalidArgument, "cannot presign {} requests; only GET and PUT", method);
  if (valid_for < std::chrono::seconds(1) || valid_for > kLongest) {
    return Fail(Code::kInvalidArgument, "a presigned URL can be valid for 1 second to 7 days, not {}",
                FormatDuration(valid_for));
  }
  MR_TRY(with_.settings->CheckBucket(bucket));
  Credentials credentials = MR_TRY(with_.credentials->GetNow());
  if (credentials.anonymous()) {
    return Fail(Code::kInvalidArgument, "cannot presign without credentials (--no-sign-request is set)");
  }
  std::string region = RegionOf(std::string(bucket));
  Settings::Address address = with_.settings->AddressOf(bucket, key, region);
  Signable signable{.method = method, .host = address.host, .path = address.path, .query = ""};
  return address.Url(SignerFor(region).Presign(signable, {}, credentials, ServerTime(), valid_for));
}

}  // namespace millrace::object::s3
