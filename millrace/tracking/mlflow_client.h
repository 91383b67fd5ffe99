// MLflow's REST API, as far as a run needs it. Source: https://mlflow.org/docs/latest/rest-api.html (version 2.0 of the
// API, that of MLflow 1 to 3).
#pragma once

#include <optional>
#include <stop_token>
#include <string>
#include <string_view>

#include "millrace/base/clock.h"
#include "millrace/base/json.h"
#include "millrace/base/log.h"
#include "millrace/base/result.h"
#include "millrace/http/client/client.h"
#include "millrace/tracking/options.h"

namespace millrace::tracking {

/// The address of a server, and the credentials for it.
struct MlflowAccess {
  std::string url;            ///< http:// or https://, without a '/' at its end
  std::string authorization;  ///< value of the header; empty: none. A secret
  std::string ca_bundle, client_certificate;
  bool verify_tls = true;
  http::Proxies proxies;

  /// Reads MLflow's variables: MLFLOW_TRACKING_URI (if `url` is empty), MLFLOW_TRACKING_TOKEN or
  /// MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, MLFLOW_TRACKING_SERVER_CERT_PATH,
  /// MLFLOW_TRACKING_CLIENT_CERT_PATH, MLFLOW_TRACKING_INSECURE_TLS; and the proxies.
  /// Errors: kInvalidArgument without a URL, or if it is none of http:// and https://, or has a password.
  static Result<MlflowAccess> Find(const std::string& url, const std::string& ca_bundle,
                                   const Environment& environment);
};

/// One thread at a time.
class MlflowClient {
 public:
  /// REQUIRES: `clock` outlives the client.
  MlflowClient(MlflowAccess access, Clock& clock, Logger log);

  /// Posts `body` to an endpoint ("runs/create") and returns the answer. Without a body, sends GET. Tries again with a
  /// growing pause while the server is away, is busy or fails, until `deadline` or until `stop` fires. The log has the
  /// first failure of each time that it is away.
  /// Errors: kNotFound, kAlreadyExists, kPermissionDenied (401, 403) and kInvalidArgument (other 4xx) with the server's
  /// words; kUnavailable if it did not answer in time.
  Result<Json> Call(std::string_view endpoint, const std::optional<Json>& body, Deadline deadline,
                    std::stop_token stop = {});

 private:
  Result<Json> Once(std::string_view endpoint, const std::optional<Json>& body, Deadline deadline);

  const MlflowAccess access_;
  Clock& clock_;
  const Logger log_;
  bool away_ = false;  ///< since the last answer
  http::Client client_;
};

}  // namespace millrace::tracking
