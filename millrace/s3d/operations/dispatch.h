// From a request line to an operation.
#pragma once

#include <string>
#include <string_view>

#include "millrace/http/server/server.h"
#include "millrace/s3d/operations/exchange.h"
#include "millrace/s3d/protocol/s3_error.h"

namespace millrace::s3d {

/// What a request is about. Both empty: the service; key empty: the bucket.
struct Target {
  std::string bucket, key;
};
/// Path style ("/bucket/key"), and virtual-host style for hosts below "localhost" ("bucket.localhost:9000").
Reply<Target> ParseTarget(const http::ServerRequest& request);

/// An operation by S3's name for it.
struct Route {
  enum class Level { kService, kBucket, kObject };
  std::string_view name;
  Level level;
  std::string_view method;
  std::string_view parameter;  ///< the sub-resource that must be asked for; empty: none
  bool copies;                 ///< whether an x-amz-copy-source header makes the difference
  Operation run;
};
/// Fails with NotImplemented for what S3 has and this endpoint does not, with MethodNotAllowed for what nobody has.
Reply<const Route*> FindRoute(const http::ServerRequest& request, const Target& target, const QueryParameters& query);

}  // namespace millrace::s3d
