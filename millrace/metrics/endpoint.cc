#include "millrace/metrics/endpoint.h"

#include <utility>

namespace millrace::metrics {

Result<std::unique_ptr<http::Server>> ServeMetrics(std::string address, std::function<std::string()> text, Logger log) {
  auto answer = [text = std::move(text)](http::ServerRequest& request, http::ServerResponse& response) {
    if (request.method() != "GET") return void(response.Send(405, {}, AsBytes("only GET\n")));
    if (request.path() != "/metrics") return void(response.Send(404, {}, AsBytes("see /metrics\n")));
    http::Headers headers;
    headers.Set("Content-Type", "text/plain; version=0.0.4");
    const std::string body = text();
    (void)response.Send(200, std::move(headers), AsBytes(body));
  };
  auto server =
      MR_TRY(http::Server::Start({.listen = std::move(address), .max_connections = 16, .log = log}, std::move(answer)));
  log.Info("/metrics is served", {{"address", server->address()}});
  return server;
}

}  // namespace millrace::metrics
