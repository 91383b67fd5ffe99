#include "millrace/tracking/mlflow_client.h"

#include <algorithm>
#include <utility>

#include "millrace/base/hash/text_encoding.h"
#include "millrace/base/text.h"
#include "millrace/tracking/mlflow_names.h"

namespace millrace::tracking {
namespace {

constexpr auto kRequestPatience = std::chrono::seconds(20);
constexpr auto kFirstPause = std::chrono::milliseconds(500), kLongestPause = std::chrono::milliseconds(30'000);
constexpr std::size_t kMaxAnswer = 16 * kMiB;  // a run with all of its parameters has some hundred KiB
constexpr std::size_t kMaxWords = 400;         // of an error page

bool IsTemporary(Code code) {
  return code == Code::kUnavailable || code == Code::kThrottled || code == Code::kDeadlineExceeded;
}

/// Returns what an answer says went wrong.
Error ErrorOf(int status, std::string_view endpoint, const std::string& body) {
  const auto json = ParseJson(body, "answer");
  const std::string code = json ? JsonString(*json, "error_code").value_or("") : "";
  std::string words = json ? JsonString(*json, "message").value_or("") : "";
  if (words.empty()) words = fmt::format("status {}", status);
  words = CutText(words, kMaxWords);
  const std::string message = fmt::format("MLflow refuses {}: {}", endpoint, words);
  if (status == 429) return Error(Code::kThrottled, message);
  if (status >= 500) return Error(Code::kUnavailable, message);
  if (status == 401 || status == 403) {
    return Error(Code::kPermissionDenied,
                 message + "; check MLFLOW_TRACKING_TOKEN, or MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD");
  }
  if (code == "RESOURCE_ALREADY_EXISTS") return Error(Code::kAlreadyExists, message);
  if (status == 404) return Error(Code::kNotFound, message);
  return Error(Code::kInvalidArgument, message);
}

http::Client::Options ClientOptions(const MlflowAccess& access) {
  http::Client::Options options{.max_connections = 1, .max_connections_per_host = 1, .loops = 1};
  options.ca_bundle = access.ca_bundle;
  options.verify_tls = access.verify_tls;
  options.client_certificate = options.client_key = access.client_certificate;  // one file has both
  options.proxies = access.proxies;
  return options;
}

}  // namespace

Result<MlflowAccess> MlflowAccess::Find(const std::string& url, const std::string& ca_bundle,
                                        const Environment& environment) {
  const auto get = [&](const char* name) { return environment(name).value_or(""); };
  MlflowAccess access{.url = url.empty() ? get("MLFLOW_TRACKING_URI") : url};
  if (access.url.empty()) {
    return Fail(Code::kInvalidArgument, "MLflow: set log.mlflow.url or MLFLOW_TRACKING_URI to the tracking server");
  }
  if (!access.url.starts_with("http://") && !access.url.starts_with("https://")) {
    return Fail(Code::kInvalidArgument, "MLflow: the URL of the tracking server should begin with http:// or https://");
  }
  const std::string_view rest = std::string_view(access.url).substr(access.url.find("//") + 2);
  if (rest.substr(0, rest.find('/')).contains('@')) {
    return Fail(Code::kInvalidArgument,
                "MLflow: the URL has a user's name; set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD instead");
  }
  while (access.url.ends_with('/')) access.url.pop_back();
  if (const std::string token = get("MLFLOW_TRACKING_TOKEN"); !token.empty()) {
    access.authorization = "Bearer " + token;
  } else if (const std::string user = get("MLFLOW_TRACKING_USERNAME"); !user.empty()) {
    const std::string pair = fmt::format("{}:{}", user, get("MLFLOW_TRACKING_PASSWORD"));
    access.authorization = "Basic " + Base64Encode(AsBytes(pair));
  }
  access.ca_bundle = environment("MLFLOW_TRACKING_SERVER_CERT_PATH").value_or(ca_bundle);
  access.client_certificate = get("MLFLOW_TRACKING_CLIENT_CERT_PATH");
  const std::string insecure = ToLower(get("MLFLOW_TRACKING_INSECURE_TLS"));
  access.verify_tls = insecure != "true" && insecure != "1";
  access.proxies = http::Proxies::FromEnvironment(environment);
  return access;
}

MlflowClient::MlflowClient(MlflowAccess access, Clock& clock, Logger log)
    : access_(std::move(access)), clock_(clock), log_(std::move(log)), client_(ClientOptions(access_)) {}

Result<Json> MlflowClient::Call(std::string_view endpoint, const std::optional<Json>& body, Deadline deadline,
                                std::stop_token stop) {
  Duration pause = kFirstPause;
  for (;;) {
    auto answer = Once(endpoint, body, deadline);
    if (answer || !IsTemporary(answer.error().code())) {
      away_ = false;
      return answer;
    }
    if (!std::exchange(away_, true)) {
      log_.Warning("MLflow does not answer; it is asked again", {{"error", answer.error()}});
    }
    // Nobody waits for a pause that goes beyond the deadline.
    if (!deadline.infinite() && clock_.Now() + pause >= deadline.at()) return answer;
    if (!clock_.SleepFor(pause, stop)) return answer;
    pause = std::min<Duration>(pause * 2, kLongestPause);
  }
}

Result<Json> MlflowClient::Once(std::string_view endpoint, const std::optional<Json>& body, Deadline deadline) {
  http::Request request{.method = body ? "POST" : "GET",
                        .url = fmt::format("{}/api/2.0/mlflow/{}", access_.url, endpoint)};
  request.headers.Set("Accept", "application/json");
  if (!access_.authorization.empty()) request.headers.Set("Authorization", access_.authorization);
  std::string text;
  if (body) {
    text = DumpJson(*body);
    request.headers.Set("Content-Type", "application/json");
    request.body = AsBytes(text);
  }
  // The client's requests keep the machine's time, whatever clock the pauses follow.
  const Duration left = deadline.infinite() ? Duration(kRequestPatience) : deadline.at() - clock_.Now();
  const auto patience = std::clamp<Duration>(left, std::chrono::milliseconds(1), kRequestPatience);
  const auto response = client_.Send(std::move(request), {.max_collected = kMaxAnswer},
                                     {.deadline = Deadline::After(SystemClock(), patience)});
  const std::string_view path = endpoint.substr(0, endpoint.find('?'));
  if (!response) {
    return Fail(Code::kUnavailable, "MLflow at {} does not answer {}: {}", access_.url, path,
                response.error().message());
  }
  if (response->status / 100 != 2) return Fail(ErrorOf(response->status, path, response->body));
  return ParseJson(response->body, fmt::format("the answer of MLflow to {}", path));
}

}  // namespace millrace::tracking
