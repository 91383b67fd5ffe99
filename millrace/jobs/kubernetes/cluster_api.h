// The API of a Kubernetes cluster: objects as JSON at paths.
#pragma once

#include <memory>
#include <optional>
#include <stop_token>
#include <string>

#include "millrace/base/json.h"
#include "millrace/base/result.h"
#include "millrace/http/client/client.h"
#include "millrace/jobs/kubernetes/cluster_access.h"

namespace millrace::jobs {

/// A client of a cluster's API. Every call is one that may be repeated: what may pass (no connection, 429, 5xx) is
/// tried again for about ten seconds. Thread-safe. Calls block. Errors: kUnavailable if the cluster does not answer;
/// kPermissionDenied if it refuses who asks; kInvalidArgument if it refuses an object; kNotFound; kPreconditionFailed
/// if something else changed the object.
class ClusterApi {
 public:
  explicit ClusterApi(ClusterAccess access, std::stop_token stop = {});

  const ClusterAccess& access() const { return access_; }
  /// Returns the object at `path`, or nothing.
  Result<std::optional<Json>> Get(const std::string& path);
  /// Makes the object, or changes it to be so (server-side apply). Returns what it is then.
  Result<Json> Apply(const std::string& path, const Json& object);
  /// Changes members of the object (RFC 7386).
  Result<Json> Merge(const std::string& path, const Json& patch);
  /// Deletes the object, and then what belongs to it. With `belongings_first`, the object stays until what belongs to
  /// it is gone. Nothing happens if it is not there.
  Status Delete(const std::string& path, bool belongings_first = false);
  /// Returns text, such as a log. Nothing if there is none (404), or not yet (400).
  Result<std::optional<std::string>> Text(const std::string& path);

 private:
  Result<http::Response> Send(const std::string& method, const std::string& path, const char* content_type,
                              const Json& body);

  const ClusterAccess access_;
  const std::stop_token stop_;
  std::unique_ptr<http::Client> client_;
};

}  // namespace millrace::jobs
