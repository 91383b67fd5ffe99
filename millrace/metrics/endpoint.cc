#include "millrace/metrics/endpoint.h"

#include <utility>

namespace millrace::metrics {

namespace {

// Few: a scraper or two ask, every few seconds. A connection that sends nothing gives way to the next.
constexpr int kMaxConnections = 16;
constexpr Duration kMaxWait = std::chrono::seconds(10);

}  // namespace

Result<std::unique_ptr<http::Server>> ServeMetrics(const EndpointOptions& options, EndpointTexts texts) {
  http::ApiKeys keys = MR_TRY(http::OpenAccess(options.listen, options.access, options.how));
  auto answer = [texts = std::move(texts), keys = std::move(keys), health = options.health](
                    http::ServerRequest& request, http::ServerResponse& response) {
    if (request.path() == "/health") {
      const Status healthy = health ? health() : Status();
      const std::string body = healthy ? "ok\n" : healthy.error().ToString() + "\n";
      return void(response.Send(healthy ? 200 : 503, {}, AsBytes(body)));
    }
    if (!keys.Allow(request.headers())) {
      http::Headers headers;
      headers.Set("WWW-Authenticate", "Bearer");
      return void(response.Send(401, std::move(headers), AsBytes("a key is wanted: Authorization: Bearer KEY\n")));
    }
    if (request.method() != "GET") return void(response.Send(405, {}, AsBytes("only GET\n")));
    const auto found = texts.find(request.path());
    if (found == texts.end()) return void(response.Send(404, {}, AsBytes("see /metrics\n")));
    http::Headers headers;
    headers.Set("Content-Type", found->first == "/metrics" ? "text/plain; version=0.0.4" : "application/json");
    const std::string body = found->second();
    (void)response.Send(200, std::move(headers), AsBytes(body));
  };
  auto server = MR_TRY(http::Server::Start({.listen = options.listen,
                                            .max_connections = kMaxConnections,
                                            .header_timeout = kMaxWait,
                                            .wait = {.stall = kMaxWait},
                                            .log = options.log},
                                           std::move(answer)));
  options.log.Info("/metrics is served", {{"address", server->address()}});
  return server;
}

}  // namespace millrace::metrics
