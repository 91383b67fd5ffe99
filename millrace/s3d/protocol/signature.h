// AWS Signature Version 4, and Version 2 in URLs: the verifying side.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "millrace/base/clock.h"
#include "millrace/base/hash/digest.h"
#include "millrace/http/server/server.h"
#include "millrace/s3d/protocol/s3_error.h"

namespace millrace::s3d {

struct Credentials {
  std::string access_key, secret_key;
};

using QueryParameters = std::vector<std::pair<std::string, std::string>>;

/// The result of checking a request's signature.
struct Authenticated {
  bool anonymous = false;
  /// The value of x-amz-content-sha256, which the body must match. UNSIGNED-PAYLOAD: the body is not signed.
  std::string content_sha256 = "UNSIGNED-PAYLOAD";
  // For signed chunks: each chunk's signature covers the one before.
  Sha256Digest signing_key{};
  std::string date, scope;  ///< 20260131T120000Z, 20260131/region/s3/aws4_request
  std::string seed_signature;
};

/// Authenticates requests by a signature in the Authorization header or in the query (presigned URL). Immutable and
/// thread-safe.
class Authenticator {
 public:
  /// The requests that pass without a signature. A signature that is present is always checked.
  enum class Anonymous {
    kRefused,
    kThisMachine,  ///< all but those that a browser sends for another site (see CheckSite)
    kAnyHost,      ///< like kThisMachine, also with a Host that this endpoint does not know
  };
  Authenticator(Credentials credentials, Anonymous anonymous, const Clock& clock)
      : credentials_(std::move(credentials)), anonymous_(anonymous), clock_(clock) {}

  /// `ahead`: how far the endpoint's clock shall be ahead of the real one.
  Reply<Authenticated> Check(const http::ServerRequest& request, const QueryParameters& query,
                             Duration ahead = {}) const;

 private:
  Reply<Authenticated> CheckHeader(const http::ServerRequest& request, const QueryParameters& query,
                                   Duration ahead) const;
  Reply<Authenticated> CheckPresigned(const http::ServerRequest& request, const QueryParameters& query) const;
  /// Signature Version 2 in a query, which boto3 makes by default in us-east-1 (signature_v2.cc).
  Reply<Authenticated> CheckPresignedV2(const http::ServerRequest& request, const QueryParameters& query) const;
  struct Claim;
  Reply<Authenticated> Verify(const http::ServerRequest& request, const QueryParameters& query, Claim claim) const;

  const Credentials credentials_;
  const Anonymous anonymous_;
  const Clock& clock_;
};

Sha256Digest DeriveSigningKey(std::string_view secret_key, std::string_view day, std::string_view region,
                              std::string_view service);

}  // namespace millrace::s3d
