// AWS Signature Version 4, in header and presigned form.
// Source: "Authenticating Requests (AWS Signature Version 4)", Amazon S3 API reference.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "millrace/base/clock.h"
#include "millrace/base/hash/digest.h"
#include "millrace/base/threads/sync.h"
#include "millrace/http/headers.h"

namespace millrace::object::s3 {

/// Who signs. An empty access key means that requests go out unsigned.
struct Credentials {
  std::string access_key, secret_key, session_token;
  std::optional<WallTime> expires;  ///< nothing: never
  bool anonymous() const { return access_key.empty(); }
};

/// Name and value, not yet encoded.
using Query = std::vector<std::pair<std::string, std::string>>;
/// The query in canonical form: encoded and sorted. It is also what goes on the wire.
std::string EncodeQuery(const Query& query);

/// What is signed: all of it must reach the server unchanged.
struct Signable {
  std::string_view method;
  std::string_view host;   ///< as in the Host field: with the port unless it is the scheme's own
  std::string_view path;   ///< percent-encoded once
  std::string_view query;  ///< from EncodeQuery
};

inline constexpr std::string_view kUnsignedPayload = "UNSIGNED-PAYLOAD";

/// Signs for one region and service. Thread-safe. Costs one hash and one HMAC of some hundred bytes a request: the
/// signing key is kept until the day or the secret changes.
class Signer {
 public:
  Signer(std::string region, std::string service);

  /// Adds Host, X-Amz-Date, X-Amz-Security-Token where there is one, and Authorization to `headers`, and signs all of
  /// them. `payload_hash` is the body's SHA-256 in hex or kUnsignedPayload.
  void Sign(const Signable& request, std::string_view payload_hash, const Credentials& credentials, WallTime now,
            http::Headers& headers) const;
  /// The query, with the signature, of a URL that is good for `valid_for` from `now`.
  std::string Presign(const Signable& request, Query query, const Credentials& credentials, WallTime now,
                      Duration valid_for) const;

  const std::string& region() const { return region_; }

 private:
  Sha256Digest KeyFor(const std::string& secret, std::string_view date) const MR_EXCLUDES(mutex_);
  std::string Scope(std::string_view date) const;

  const std::string region_, service_;
  mutable Mutex mutex_;
  mutable std::string key_secret_ MR_GUARDED_BY(mutex_), key_date_ MR_GUARDED_BY(mutex_);
  mutable Sha256Digest key_ MR_GUARDED_BY(mutex_);
};

}  // namespace millrace::object::s3
