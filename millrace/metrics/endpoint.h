// /metrics, for programs that serve nothing else.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "millrace/base/log.h"
#include "millrace/base/result.h"
#include "millrace/http/server.h"

namespace millrace::metrics {

/// Answers GET /metrics on `address` ("127.0.0.1:9464"; port 0 takes a free one) with what `text` returns, as long as
/// the server lives. `text` is called on the server's threads. Fails when nobody can listen there, naming the address.
Result<std::unique_ptr<http::Server>> ServeMetrics(std::string address, std::function<std::string()> text, Logger log);

}  // namespace millrace::metrics
