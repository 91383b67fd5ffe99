#include "millrace/jobs/health/spot_watch.h"

#include <cstdlib>
#include <utility>

#include "millrace/base/json.h"
#include "millrace/base/text.h"
#include "millrace/http/client/client.h"

namespace millrace::jobs {
namespace {

constexpr Duration kMetadataPatience = std::chrono::seconds(2);

/// One connection to a metadata service. Paths and fields are those of Amazon's "Instance metadata" and "Spot Instance
/// interruption notices".
class MetadataService {
 public:
  MetadataService(std::string endpoint, std::stop_token stop)
      : endpoint_(std::move(endpoint)),
        stop_(std::move(stop)),
        client_({.loops = 1, .timeouts = {.connect = kMetadataPatience, .first_byte = kMetadataPatience}}) {}

  /// Returns the notice's JSON text; nothing if there is none or the service does not answer.
  std::optional<std::string> InstanceAction() {
    constexpr int kUnauthorized = 401;
    auto answer = Get("/latest/meta-data/spot/instance-action");
    if (answer && answer->status == kUnauthorized) {
      token_ = Token();  // the first one, or a new one: they live for six hours
      answer = Get("/latest/meta-data/spot/instance-action");
    }
    if (!answer || answer->status != 200) return std::nullopt;
    return std::move(answer->body);
  }

 private:
  Result<http::Response> Get(const std::string& path) {
    http::Request request{.url = endpoint_ + path};
    if (!token_.empty()) request.headers.Set("X-aws-ec2-metadata-token", token_);
    return Send(std::move(request));
  }
  /// Machines with version 1 of the service have no tokens.
  std::string Token() {
    http::Request request{.method = "PUT", .url = endpoint_ + "/latest/api/token"};
    request.headers.Set("X-aws-ec2-metadata-token-ttl-seconds", "21600");
    const auto answer = Send(std::move(request));
    return answer && answer->status == 200 ? std::string(Trim(answer->body)) : "";
  }
  Result<http::Response> Send(http::Request request) {
    return client_.Send(std::move(request), {.max_collected = 64 * kKiB},
                        {.stop = stop_, .deadline = Deadline::After(SystemClock(), 2 * kMetadataPatience)});
  }

  const std::string endpoint_;
  const std::stop_token stop_;
  http::Client client_;
  std::string token_;
};

}  // namespace

std::string SpotWatch::DefaultEndpoint() {
  const char* given = std::getenv("AWS_EC2_METADATA_SERVICE_ENDPOINT");
  std::string endpoint = given != nullptr && *given != '\0' ? given : "http://169.254.169.254";
  while (endpoint.ends_with('/')) endpoint.pop_back();
  return endpoint;
}

SpotWatch::SpotWatch(std::string endpoint, Duration interval)
    : thread_([this, endpoint = std::move(endpoint), interval](std::stop_token stop) {
        Watch(endpoint, interval, std::move(stop));
      }) {}

std::optional<Finding> SpotWatch::TerminationNotice() const {
  const MutexLock lock(mutex_);
  return notice_;
}

void SpotWatch::Watch(const std::string& endpoint, Duration interval, std::stop_token stop) {
  MetadataService service(endpoint, stop);
  do {
    const std::optional<std::string> text = service.InstanceAction();
    const auto json =
        text ? ParseJson(*text, "a notice of EC2") : Fail(Code::kNotFound, "no notice of an end; wait for one");
    if (!json) continue;
    const std::string action = JsonString(*json, "action").value_or("stop"),
                      at = JsonString(*json, "time").value_or("?");
    const MutexLock lock(mutex_);
    notice_ = Finding{Finding::Level::kFail, "spot", fmt::format("EC2 will {} this machine at {}", action, at),
                      "nothing: the job saves and goes on elsewhere, or later", "no notice of interruption"};
    return;  // a notice is not taken back
  } while (SystemClock().SleepFor(interval, stop));
}

}  // namespace millrace::jobs
