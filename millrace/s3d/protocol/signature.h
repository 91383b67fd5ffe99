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

/// What the signature of a request has established.
struct Authenticated {
  bool anonymous = false;
  /// The value of x-amz-content-sha256: what the payload is held to. UNSIGNED-PAYLOAD where nothing was promised.
  std::string content_sha256 = "UNSIGNED-PAYLOAD";
  // For signed chunks: each chunk's signature covers the one before.
  Sha256Digest signing_key{};
  std::string date, scope;  ///< 20260131T120000Z, 20260131/region/s3/aws4_request
  std::string seed_signature;
};

/// Checks who sent a request: a signature in its Authorization header or in its query (presigned URL), or none.
class Authenticator {
 public:
  /// Whose requests pass without a signature. Signatures that are there are checked all the same.
  enum class Anonymous {
    kRefused,
    kThisMachine,  ///< not those that a browser sends for another site (see CheckSite)
    kAnyHost,      ///< also with a Host that this endpoint does not know
  };
  Authenticator(Credentials credentials, Anonymous anonymous, const Clock& clock)
      : credentials_(std::move(credentials)), anonymous_(anonymous), clock_(clock) {}

  Reply<Authenticated> Check(const http::ServerRequest& request, const QueryParameters& query) const;

 private:
  Reply<Authenticated> CheckHeader(const http::ServerRequest& request, const QueryParameters& query) const;
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
