// AWS Signature Version 4, in headers and in presigned URLs.
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

/// The identity that signs. With an empty access key, requests are not signed.
struct Credentials {
  std::string access_key, secret_key, session_token;
  std::optional<WallTime> expires;  ///< no value: never
  bool anonymous() const { return access_key.empty(); }
};

/// Names and values of a URL's query, not yet encoded.
using Query = std::vector<std::pair<std::string, std::string>>;
/// The query in canonical form, encoded and sorted. Requests send it in this form, too.
std::string EncodeQuery(const Query& query);

/// The parts of a request that are signed. No proxy may change them.
struct Signable {
  std::string_view method;
  std::string_view host;   ///< as in the Host field: with the port, unless it is the scheme's default
  std::string_view path;   ///< percent-encoded once
  std::string_view query;  ///< from EncodeQuery
};

inline constexpr std::string_view kUnsignedPayload = "UNSIGNED-PAYLOAD";

/// Signs for one region and service. Keeps the signing key until the day or the secret changes, so a request costs one
/// hash and one HMAC of some hundred bytes. Thread-safe.
class Signer {
 public:
  Signer(std::string region, std::string service);

  /// Adds Host, X-Amz-Date, X-Amz-Security-Token (if there is a token) and Authorization to `headers`. Signs all of the
  /// headers. `payload_hash` is the body's SHA-256 in hex, or kUnsignedPayload.
  void Sign(const Signable& request, std::string_view payload_hash, const Credentials& credentials, WallTime now,
            http::Headers& headers) const;
  /// The query of a presigned URL, with its signature. The URL is valid from `now` for `valid_for`.
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
