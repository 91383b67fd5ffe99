#include "millrace/jobs/kubernetes/cluster_api.h"

#include <cstdlib>
#include <utility>

#include "millrace/base/clock.h"
#include "millrace/base/files/files.h"

namespace millrace::jobs {
namespace {

constexpr int kAttempts = 6;
constexpr Duration kFirstDelay = std::chrono::milliseconds(200);  ///< doubled each time: 6 s in all

/// Returns what an API server says of a refusal (a Status object).
std::string Reason(const http::Response& response) {
  const auto status = ParseJson(response.body, "a refusal");
  const auto message = status ? JsonString(*status, "message") : Result<std::string>(response.body.substr(0, 200));
  return message ? *message : fmt::format("HTTP status {}", response.status);
}

Code CodeOf(int status) {
  switch (status) {
    case 401:
    case 403:
      return Code::kPermissionDenied;
    case 404:
      return Code::kNotFound;
    case 409:
      return Code::kPreconditionFailed;
    case 429:
      return Code::kUnavailable;
    default:
      return status >= 500 ? Code::kUnavailable : Code::kInvalidArgument;
  }
}

std::optional<std::string> ProxyVariable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

}  // namespace

ClusterApi::ClusterApi(ClusterAccess access, std::stop_token stop)
    : access_(std::move(access)), stop_(std::move(stop)) {
  http::Client::Options options;
  options.max_connections = 4;
  options.loops = 1;
  options.ca_bundle = access_.ca_file;
  options.verify_tls = access_.verify_tls;
  options.client_certificate = access_.client_certificate_file;
  options.client_key = access_.client_key_file;
  options.proxies = http::Proxies::FromEnvironment(ProxyVariable);
  client_ = std::make_unique<http::Client>(std::move(options));
}

Result<http::Response> ClusterApi::Send(const std::string& method, const std::string& path, const char* content_type,
                                        const Json& body) {
  const std::string text = body.is_null() ? "" : DumpJson(body);
  Duration delay = kFirstDelay;
  for (int attempt = 1;; ++attempt) {
    http::Request request{.method = method, .url = access_.server + path, .body = AsBytes(text)};
    request.headers.Set("Accept", "application/json, */*");
    if (!text.empty()) request.headers.Set("Content-Type", content_type);
    std::string token = access_.token;
    if (!access_.token_file.empty()) {
      constexpr std::uint64_t kMaxTokenBytes = 64 * kKiB;
      token = MR_TRY(ReadFile(access_.token_file, kMaxTokenBytes));
      while (token.ends_with('\n')) token.pop_back();
    }
    if (!token.empty()) request.headers.Set("Authorization", "Bearer " + token);
    auto response = client_->Send(std::move(request), {}, {.stop = stop_, .deadline = {}});
    const bool again = response ? CodeOf(response->status) == Code::kUnavailable && response->status >= 400
                                : response.error().code() == Code::kUnavailable;
    if (!again || attempt == kAttempts || !SystemClock().SleepFor(delay, stop_)) {
      if (!response) return Fail(response.error().Context("Kubernetes at " + access_.server));
      return response;
    }
    delay *= 2;
  }
}

Result<std::optional<Json>> ClusterApi::Get(const std::string& path) {
  const auto response = MR_TRY(Send("GET", path, "", nullptr));
  if (response.status == 404) return std::optional<Json>();
  if (response.status != 200) return Fail(CodeOf(response.status), "Kubernetes: {}", Reason(response));
  return std::optional<Json>(MR_TRY(ParseJson(response.body, "Kubernetes' answer")));
}

Result<Json> ClusterApi::Apply(const std::string& path, const Json& object) {
  const auto response =
      MR_TRY(Send("PATCH", path + "?fieldManager=millrace&force=true", "application/apply-patch+yaml", object));
  if (response.status >= 300) return Fail(CodeOf(response.status), "Kubernetes: {}", Reason(response));
  return ParseJson(response.body, "Kubernetes' answer");
}

Result<Json> ClusterApi::Merge(const std::string& path, const Json& patch) {
  const auto response = MR_TRY(Send("PATCH", path + "?fieldManager=millrace", "application/merge-patch+json", patch));
  if (response.status >= 300) return Fail(CodeOf(response.status), "Kubernetes: {}", Reason(response));
  return ParseJson(response.body, "Kubernetes' answer");
}

Status ClusterApi::Delete(const std::string& path, bool belongings_first) {
  const char* policy = belongings_first ? "Foreground" : "Background";
  const auto response = MR_TRY(Send("DELETE", fmt::format("{}?propagationPolicy={}", path, policy), "", nullptr));
  if (response.status < 300 || response.status == 404) return {};
  return Fail(CodeOf(response.status), "Kubernetes: {}", Reason(response));
}

Result<std::optional<std::string>> ClusterApi::Text(const std::string& path) {
  auto response = MR_TRY(Send("GET", path, "", nullptr));
  constexpr int kNoContent = 204;
  if (response.status == 404 || response.status == 400 || response.status == kNoContent) {
    return std::optional<std::string>();
  }
  if (response.status != 200) return Fail(CodeOf(response.status), "Kubernetes: {}", Reason(response));
  return std::optional<std::string>(std::move(response.body));
}

}  // namespace millrace::jobs
