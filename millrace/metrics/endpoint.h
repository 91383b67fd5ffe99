// /metrics, for programs that serve nothing else.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "millrace/base/log.h"
#include "millrace/base/result.h"
#include "millrace/http/server/access.h"
#include "millrace/http/server/server.h"

namespace millrace::metrics {

/// Where /metrics is served, and to whom.
struct EndpointOptions {
  std::string listen;          ///< "127.0.0.1:9464"; port 0 takes a free one
  http::AccessOptions access;  ///< a key file, whose keys scrapers send as bearer tokens
  std::string how;             ///< what the user gives to listen beyond loopback, for messages
  Logger log;
};

/// Answers GET /metrics with what `text` returns, as long as the server lives, and GET /health with "ok", without a
/// key. `text` is called on the server's threads. Errors: those of http::OpenAccess; those of listening, naming the
/// address.
Result<std::unique_ptr<http::Server>> ServeMetrics(const EndpointOptions& options, std::function<std::string()> text);

}  // namespace millrace::metrics
