#include "millrace/object/s3/endpoint.h"

#include "millrace/base/hash/random.h"
#include "millrace/object/s3/session.h"

namespace millrace::object::s3 {
namespace {

http::Client::Options ClientOptions(const Settings& settings, const ConnectOptions& options,
                                    const Environment& environment) {
  return {.max_connections = options.concurrency,
          .max_connections_per_host = options.concurrency,
          .ca_bundle = settings.ca_bundle,
          .verify_tls = options.verify_tls,
          .proxies = settings.loopback ? http::Proxies() : http::Proxies::FromEnvironment(environment.getenv),
          .max_bytes_per_second = options.bandwidth,
          .log = options.log};
}

/// Sends a request for credentials with a client of its own. There are a few an hour, to other hosts; they must not
/// wait behind data, and must fail soon if there is no metadata service.
Result<http::Response> FetchOnce(const std::string& ca_bundle, http::Proxies proxies, http::Request request,
                                 http::Call call) {
  if (request.url.starts_with("http:")) proxies = {};  // metadata services are local
  http::Client client({.timeouts = {.connect = std::chrono::seconds(1), .first_byte = std::chrono::seconds(5)},
                       .ca_bundle = ca_bundle,
                       .proxies = std::move(proxies)});
  return client.Send(std::move(request), {.max_collected = kMiB}, std::move(call));
}

}  // namespace

Endpoint::Session::Session(Settings settings, std::unique_ptr<CredentialSource> source, http::Client::Options options,
                           Clock& clock)
    : settings_(std::move(settings)),
      credentials_(std::move(source), clock, options.log),
      timers_(clock),
      client_(options),
      dispatcher_({.settings = &settings_,
                   .client = &client_,
                   .credentials = &credentials_,
                   .timers = &timers_,
                   .clock = &clock,
                   .most_at_once = options.max_connections,
                   .log = options.log,
                   .jitter_seed = SystemEntropy()}) {}

namespace {

Environment EnvironmentOf(const ConnectOptions& options) {
  Environment environment = Environment::System();
  if (options.environment.empty()) return environment;
  environment.getenv = [replaced = options.environment,
                        system = std::move(environment.getenv)](const char* name) -> std::optional<std::string> {
    const auto found = replaced.find(name);
    if (found == replaced.end()) return system(name);
    return found->second.empty() ? std::nullopt : std::optional(found->second);
  };
  return environment;
}

/// The current settings and credentials of the environment and the shared AWS files.
struct Found {
  Settings settings;
  std::unique_ptr<CredentialSource> source;
};
Result<Found> Find(const ConnectOptions& options, Environment& environment) {
  Profiles profiles = MR_TRY(Profiles::Load(environment));
  Settings settings = MR_TRY(Settings::Resolve(options, profiles, environment));
  environment.fetch = [ca_bundle = settings.ca_bundle, proxies = http::Proxies::FromEnvironment(environment.getenv)](
                          http::Request request, http::Call call) {
    return FetchOnce(ca_bundle, proxies, std::move(request), std::move(call));
  };
  auto source = MR_TRY(FindCredentials(settings, !options.profile.empty(), profiles, environment));
  return Found{std::move(settings), std::move(source)};
}

}  // namespace

Result<std::unique_ptr<Endpoint>> Endpoint::Open(ConnectOptions options) {
  if (options.concurrency < 1) return Fail(Code::kInvalidArgument, "--concurrency must be at least 1");
  Environment environment = EnvironmentOf(options);
  Found found = MR_TRY(Find(options, environment));
  http::Client::Options client = ClientOptions(found.settings, options, environment);
  auto session = std::make_shared<Session>(std::move(found.settings), std::move(found.source), std::move(client),
                                           *environment.clock);
  return std::unique_ptr<Endpoint>(new Endpoint(std::move(options), std::move(session)));
}

Endpoint::Endpoint(ConnectOptions options, std::shared_ptr<Session> session)
    : options_(std::move(options)), session_(std::move(session)), service_(NewService(session_)) {}
Endpoint::~Endpoint() = default;

Status Endpoint::ReloadCredentials() {
  Environment environment = EnvironmentOf(options_);
  session_->credentials().Replace(std::move(MR_TRY(Find(options_, environment)).source));
  return {};
}

std::shared_ptr<Store> Endpoint::OpenBucket(std::string bucket) { return NewStore(session_, std::move(bucket)); }
Service& Endpoint::service() { return *service_; }
http::Client::Stats Endpoint::stats() const { return session_->client().stats(); }

}  // namespace millrace::object::s3
