// An HTTP server for /metrics, for programs that serve nothing else.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "millrace/base/log.h"
#include "millrace/base/result.h"
#include "millrace/http/server/access.h"
#include "millrace/http/server/server.h"

namespace millrace::metrics {

/// The address of /metrics, and who may read it.
struct EndpointOptions {
  std::string listen;          ///< "127.0.0.1:9464"; port 0 takes a free one
  http::AccessOptions access;  ///< a file of keys that scrapers send as bearer tokens
  std::string how;             ///< the option with which the user allows access beyond loopback, for messages
  /// Returns an error if the program does not work: GET /health then gets status 503 and the error. Empty: never.
  std::function<Status()> health;
  Logger log;
};

/// The functions that make the text of each path: {"/metrics", …}. Paths besides /metrics are JSON.
using EndpointTexts = std::map<std::string, std::function<std::string()>, std::less<>>;

/// Starts a server that answers GET of the paths in `texts`, and GET /health (without a key). Calls the functions on
/// the server's threads as long as the server lives. Errors: those of http::OpenAccess(); those of listening, which
/// name the address.
Result<std::unique_ptr<http::Server>> ServeMetrics(const EndpointOptions& options, EndpointTexts texts);

}  // namespace millrace::metrics
