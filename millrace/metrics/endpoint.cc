#include "millrace/metrics/endpoint.h"

#include <utility>

namespace millrace::metrics {

namespace {

// Few: a scraper or two ask, every few seconds. A connection that sends nothing gives way to the next.
constexpr int kMostConnections = 16;
constexpr Duration kMostWait = std::chrono::seconds(10);

}  // namespace

Result<std::unique_ptr<http::Server>> ServeMetrics(const EndpointOptions& options, std::function<std::string()> text) {
  http::ApiKeys keys = MR_TRY(http::OpenAccess(options.listen, options.access, options.how));
  auto answer = [text = std::move(text), keys = std::move(keys)](http::ServerRequest& request,
                                                                 http::ServerResponse& response) {
    if (request.path() == "/health") return void(response.Send(200, {}, AsBytes("ok\n")));
    if (!keys.Allow(request.headers())) {
      http::Headers headers;
      headers.Set("WWW-Authenticate", "Bearer");
      return void(response.Send(401, std::move(headers), AsBytes("a key is wanted: Authorization: Bearer KEY\n")));
    }
    if (request.method() != "GET") return void(response.Send(405, {}, AsBytes("only GET\n")));
    if (request.path() != "/metrics") return void(response.Send(404, {}, AsBytes("see /metrics\n")));
    http::Headers headers;
    headers.Set("Content-Type", "text/plain; version=0.0.4");
    const std::string body = text();
    (void)response.Send(200, std::move(headers), AsBytes(body));
  };
  auto server = MR_TRY(http::Server::Start({.listen = options.listen,
                                            .max_connections = kMostConnections,
                                            .header_timeout = kMostWait,
                                            .wait = {.stall = kMostWait},
                                            .log = options.log},
                                           std::move(answer)));
  options.log.Info("/metrics is served", {{"address", server->address()}});
  return server;
}

}  // namespace millrace::metrics
