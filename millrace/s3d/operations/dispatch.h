// Finds the operation for a request.
#pragma once

#include <string>
#include <string_view>

#include "millrace/http/server/server.h"
#include "millrace/s3d/operations/operation_context.h"
#include "millrace/s3d/protocol/s3_error.h"

namespace millrace::s3d {

/// The resource of a request: an object, a bucket (key empty) or the service (both empty).
struct Target {
  std::string bucket, key;
};
/// Understands path style ("/bucket/key"), and virtual-host style for hosts below "localhost"
/// ("bucket.localhost:9000").
Reply<Target> ParseTarget(const http::ServerRequest& request);

/// An operation, under S3's name for it, and the requests that it serves.
struct Route {
  enum class Level { kService, kBucket, kObject };
  std::string_view name;
  Level level;
  std::string_view method;
  std::string_view parameter;  ///< the query parameter that selects it ("acl"); empty: none
  bool copies;                 ///< whether x-amz-copy-source must be present
  Operation run;
};
/// Errors: NotImplemented for operations that only S3 has; MethodNotAllowed for requests that S3 does not know either.
Reply<const Route*> FindRoute(const http::ServerRequest& request, const Target& target, const QueryParameters& query);

}  // namespace millrace::s3d
