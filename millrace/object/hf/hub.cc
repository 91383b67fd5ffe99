#include "millrace/object/hf/hub.h"

#include <cstdlib>

#include "millrace/base/hash/random.h"
#include "millrace/object/hf/hub_store.h"

namespace millrace::object::hf {
namespace {

/// How often a request is tried, as object/s3 knows it: by default often enough for an outage of most of a minute.
Result<int> Attempts(const ConnectOptions& options) {
  if (options.max_attempts > 0) return options.max_attempts;
  const char* configured = std::getenv("AWS_MAX_ATTEMPTS");
  if (!configured || !*configured) return 10;
  const int attempts = std::atoi(configured);
  if (attempts < 1) return Fail(Code::kInvalidArgument, "AWS_MAX_ATTEMPTS is {:?}; give a number from 1", configured);
  return attempts;
}

bool IsLoopback(std::string_view url) {
  const std::string_view host = url.substr(std::min(url.size(), url.find("://") + 3));
  return host.starts_with("127.") || host.starts_with("[::1]") || host.starts_with("localhost:") || host == "localhost";
}

HubClient::Options ClientOptions(const ConnectOptions& options, bool loopback, int attempts) {
  return {.http = {.max_connections = options.concurrency,
                   .max_connections_per_host = options.concurrency,
                   .ca_bundle = options.ca_bundle,
                   .proxies = loopback ? http::Proxies() : http::Proxies::FromEnvironment(std::getenv),
                   .max_bytes_per_second = options.bandwidth,
                   .log = options.log},
          .max_attempts = attempts,
          .jitter_seed = SystemEntropy(),
          .log = options.log};
}

}  // namespace

class Hub::Session {
 public:
  Session(Settings settings, HubClient::Options options)
      : client(std::move(settings), std::move(options), SystemClock()) {}
  HubClient client;
};

Result<std::unique_ptr<Hub>> Hub::Open(const ConnectOptions& options) {
  if (options.concurrency < 1) return Fail(Code::kInvalidArgument, "--concurrency must be at least 1");
  Settings settings = MR_TRY(LoadSettings(std::getenv));
  const bool loopback = IsLoopback(settings.endpoint);
  if (!settings.token.empty() && settings.endpoint.starts_with("http://") && !loopback) {
    options.log.Warning("the token of the hub travels unencrypted; use an https address",
                        {{"HF_ENDPOINT", settings.endpoint}});
  }
  auto session =
      std::make_shared<Session>(std::move(settings), ClientOptions(options, loopback, MR_TRY(Attempts(options))));
  return std::unique_ptr<Hub>(new Hub(std::move(session)));
}

Hub::~Hub() = default;

std::shared_ptr<Store> Hub::OpenRepository(const std::string& bucket) {
  return std::make_shared<HubStore>(std::shared_ptr<HubClient>(session_, &session_->client), Repository::Of(bucket));
}

Result<std::string> Hub::PinRevision(const std::string& bucket, Call call) {
  const Repository repository = Repository::Of(bucket);
  if (repository.IsCommit()) return bucket;
  HubStore store(std::shared_ptr<HubClient>(session_, &session_->client), repository);
  return fmt::format("{}@{}", bucket.substr(0, bucket.find('@')), MR_TRY(store.ReadCommit(std::move(call))));
}

Status Hub::ReloadToken() {
  session_->client.SetToken(MR_TRY(LoadSettings(std::getenv)).token);
  return {};
}

}  // namespace millrace::object::hf
