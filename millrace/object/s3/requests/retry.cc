#include "millrace/object/s3/requests/retry.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "millrace/object/s3/protocol/xml.h"

namespace millrace::object::s3 {
namespace {

struct KnownCode {
  std::string_view name;
  Code code;
  std::string_view advice = {};
};

constexpr std::string_view kAskForRights = "check the key's policy and the bucket's";
// Codes whose HTTP status alone would mislead, or for which there is something to say.
constexpr std::array kKnownCodes = {
    KnownCode{"NoSuchBucket", Code::kNotFound,
              "check the bucket's name and the endpoint, or make it with `millrace mb`"},
    KnownCode{"NoSuchUpload", Code::kNotFound, "the upload was completed, aborted or expired"},
    KnownCode{"AccessDenied", Code::kPermissionDenied, kAskForRights},
    KnownCode{"InvalidAccessKeyId", Code::kPermissionDenied,
              "the endpoint does not know this access key; is it the right endpoint?"},
    KnownCode{"XAdminUserNotFound", Code::kPermissionDenied,  // versitygw, with HTTP 404
              "the endpoint does not know this access key; is it the right endpoint?"},
    KnownCode{"SignatureDoesNotMatch", Code::kPermissionDenied,
              "check the secret key, and that no proxy rewrites requests"},
    KnownCode{"ExpiredToken", Code::kPermissionDenied, "the session has expired; sign in again"},
    KnownCode{"InvalidToken", Code::kPermissionDenied, "the session token is not valid here"},
    KnownCode{"RequestTimeTooSkewed", Code::kPermissionDenied, "set this machine's clock"},
    KnownCode{"AuthorizationHeaderMalformed", Code::kInvalidArgument, "check --region"},
    KnownCode{"PermanentRedirect", Code::kInvalidArgument, "the bucket is in another region: check --region"},
    KnownCode{"TemporaryRedirect", Code::kInvalidArgument, "the answer leads outside the endpoint: check its address"},
    // These also come inside answers that began with 200.
    KnownCode{"NoSuchKey", Code::kNotFound},
    KnownCode{"PreconditionFailed", Code::kPreconditionFailed},
    KnownCode{"InvalidPart", Code::kInvalidArgument, "upload the part again"},
    KnownCode{"InvalidPartOrder", Code::kInvalidArgument},
    KnownCode{"EntityTooSmall", Code::kInvalidArgument, "every part but the last needs 5 MiB"},
    KnownCode{"EntityTooLarge", Code::kInvalidArgument},
    KnownCode{"InvalidRequest", Code::kInvalidArgument},
    KnownCode{"SlowDown", Code::kThrottled},
    KnownCode{"SlowDownRead", Code::kThrottled},
    KnownCode{"SlowDownWrite", Code::kThrottled},
    KnownCode{"Throttling", Code::kThrottled},
    KnownCode{"ThrottlingException", Code::kThrottled},
    KnownCode{"RequestLimitExceeded", Code::kThrottled},
    KnownCode{"BandwidthLimitExceeded", Code::kThrottled},
    KnownCode{"TooManyRequests", Code::kThrottled},
    KnownCode{"RequestTimeout", Code::kUnavailable},
    KnownCode{"OperationAborted", Code::kUnavailable},
    KnownCode{"ConditionalRequestConflict", Code::kUnavailable},
    // The body was damaged on its way.
    KnownCode{"BadDigest", Code::kUnavailable},
    KnownCode{"IncompleteBody", Code::kUnavailable},
    KnownCode{"XAmzContentChecksumMismatch", Code::kUnavailable},
    KnownCode{"XAmzContentSHA256Mismatch", Code::kUnavailable},
    KnownCode{"BucketAlreadyExists", Code::kAlreadyExists, "bucket names are shared by everyone: choose another"},
    KnownCode{"BucketAlreadyOwnedByYou", Code::kAlreadyExists},
    KnownCode{"BucketNotEmpty", Code::kNotEmpty, "delete its objects and unfinished uploads first"},
    KnownCode{"InvalidObjectState", Code::kUnsupported,
              "the object is archived; `millrace restore --wait` makes it readable"},
    KnownCode{"XMinioStorageFull", Code::kNoSpace},
    KnownCode{"QuotaExceeded", Code::kNoSpace},
    KnownCode{"NotImplemented", Code::kUnsupported},
};

const KnownCode* Find(std::string_view s3_code) {
  for (const KnownCode& known : kKnownCodes) {
    if (known.name == s3_code) return &known;
  }
  return nullptr;
}

/// "120" seconds, or a date.
std::optional<Duration> ParseRetryAfter(std::string_view text, WallTime now) {
  if (text.empty()) return std::nullopt;
  int seconds = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seconds);
  if (error == std::errc() && end == text.data() + text.size() && seconds >= 0) return std::chrono::seconds(seconds);
  if (auto date = ParseHttpDate(text)) return std::max<Duration>(*date - now, Duration(0));
  return std::nullopt;
}

}  // namespace

Refusal Classify(const http::Response& response, WallTime now) {
  ErrorDocument document = ParseErrorDocument(response.body);
  std::string_view request_id = response.headers.Get("x-amz-request-id");
  if (request_id.empty()) request_id = document.request_id;
  Refusal refusal{.code = CodeFromHttpStatus(response.status), .s3_code = document.code};
  // An error within a 200 answer: the server failed midway.
  if (response.status < 300) refusal.code = Code::kUnavailable;
  std::string_view advice;
  if (const KnownCode* known = Find(document.code)) {
    refusal.code = known->code;
    advice = known->advice;
  }
  if (document.code.empty() && response.status == 301) advice = "the bucket is in another region: check --region";
  refusal.message = fmt::format("{}{}{}HTTP {}{}{}){}{}", document.message.empty() ? "refused" : document.message, " (",
                                document.code.empty() ? "" : document.code + ", ", response.status,
                                request_id.empty() ? "" : ", request ", request_id, advice.empty() ? "" : "; ", advice);
  refusal.region = response.headers.Get("x-amz-bucket-region");
  if (refusal.region.empty()) refusal.region = document.region;
  if (response.status >= 300 && response.status < 400) refusal.location = response.headers.Get("location");
  refusal.wait = ParseRetryAfter(response.headers.Get("retry-after"), now);
  refusal.ambiguous = refusal.code == Code::kUnavailable && (response.status >= 500 || response.status < 300);
  return refusal;
}

Code CodeFromS3(std::string_view s3_code) {
  const KnownCode* known = Find(s3_code);
  return known ? known->code : Code::kUnavailable;
}

bool RetryBudget::TakeForRetry() {
  MutexLock lock(mutex_);
  if (tokens_ < kRetryCost) return false;
  tokens_ -= kRetryCost;
  return true;
}

void RetryBudget::Succeeded() {
  MutexLock lock(mutex_);
  tokens_ = std::min(capacity_, tokens_ + kSuccessGain);
}

bool RetryNotice::IsDue(TimePoint now, Duration taken) {
  if (taken < kPatience) return false;
  MutexLock lock(mutex_);
  if (last_ && now - *last_ < kEvery) return false;
  last_ = now;
  return true;
}

Duration Backoff::Wait(int attempt, Code code, std::optional<Duration> asked) {
  // As the AWS SDKs, which wait up to 20 s; a service that refuses for load gets more time from the start.
  constexpr Duration kFirst = std::chrono::milliseconds(50), kFirstThrottled = std::chrono::milliseconds(250),
                     kMax = std::chrono::seconds(20);
  Duration bound = code == Code::kThrottled ? kFirstThrottled : kFirst;
  for (int i = 1; i < attempt && bound < kMax; ++i) bound *= 2;
  bound = std::min(bound, kMax);
  MutexLock lock(mutex_);
  auto jittered = std::chrono::duration_cast<Duration>(bound * random_.Uniform());
  return std::max(jittered, std::min(asked.value_or(Duration(0)), kMax));
}

Duration Backoff::LongWait() {
  // Guesses: far longer than a first wait, and short enough that an operation goes on soon after an outage.
  constexpr Duration kLeast = std::chrono::seconds(5), kSpread = std::chrono::seconds(5);
  MutexLock lock(mutex_);
  return kLeast + std::chrono::duration_cast<Duration>(kSpread * random_.Uniform());
}

}  // namespace millrace::object::s3
