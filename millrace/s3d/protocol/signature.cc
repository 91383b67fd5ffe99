#include "millrace/s3d/protocol/signature.h"

#include <algorithm>
#include <charconv>
#include <chrono>

#include "millrace/base/hash/constant_time.h"
#include "millrace/base/hash/text_encoding.h"
#include "millrace/base/text.h"
#include "millrace/http/server/access.h"
#include "millrace/http/server/cross_site.h"

namespace millrace::s3d {
namespace {

using namespace std::chrono_literals;

constexpr std::string_view kAlgorithm = "AWS4-HMAC-SHA256";
constexpr auto kMaxSkew = 15min;         // AWS's limit: RequestTimeTooSkewed beyond it
constexpr auto kMaxPresigned = 7 * 24h;  // AWS's limit of X-Amz-Expires

/// Refuses an unsigned request of a page of another site, and, unless `any_host`, one that names this endpoint in a way
/// that such a page could choose.
Reply<void> CheckSite(const http::Headers& headers, bool any_host) {
  const http::RequestSite site = http::SiteOf(headers);
  if (site == http::RequestSite::kOther) {
    return Refuse("AccessDenied", "A web page of another site sent this request, and it is not signed");
  }
  if (any_host || site == http::RequestSite::kOwn) return {};
  return Refuse("AccessDenied",
                fmt::format("Unsigned requests must name this endpoint by an address or as localhost, not as {}: sign "
                            "them, or run the endpoint with --insecure",
                            http::HostOfAuthority(headers.Get("Host"))));
}

std::string_view Find(const QueryParameters& query, std::string_view name) {
  for (const auto& [key, value] : query) {
    if (key == name) return value;
  }
  return {};
}

/// Trims the text and replaces runs of blanks by one blank.
std::string CanonicalValue(std::string_view value) {
  std::string out;
  for (char c : Trim(value)) {
    if ((c == ' ' || c == '\t') && !out.empty() && out.back() == ' ') continue;
    out += c == '\t' ? ' ' : c;
  }
  return out;
}

std::string CanonicalQuery(const QueryParameters& query) {
  std::vector<std::pair<std::string, std::string>> encoded;
  for (const auto& [name, value] : query) {
    if (name == "X-Amz-Signature") continue;
    encoded.emplace_back(PercentEncode(name, false), PercentEncode(value, false));
  }
  std::ranges::sort(encoded);
  std::string out;
  for (const auto& [name, value] : encoded) {
    if (!out.empty()) out += '&';
    out.append(name).append("=").append(value);
  }
  return out;
}

std::string CanonicalHeaders(const http::Headers& headers, const std::vector<std::string_view>& names) {
  std::string out;
  for (std::string_view name : names) {
    out.append(name).append(":");
    bool first = true;
    for (const auto& [field, value] : headers) {
      if (field.size() != name.size() || ToLower(field) != name) continue;
      if (!first) out += ',';
      out += CanonicalValue(value);
      first = false;
    }
    out += '\n';
  }
  return out;
}

/// Checks that the signature covers every field that could change what the request does.
Reply<void> CheckCoverage(const http::Headers& headers, const std::vector<std::string_view>& names) {
  auto is_signed = [&](std::string_view name) { return std::ranges::find(names, name) != names.end(); };
  if (!is_signed("host")) return Refuse("AccessDenied", "The Host header must be signed");
  for (const auto& [field, value] : headers) {
    std::string name = ToLower(field);
    if (name.starts_with("x-amz-") && !is_signed(name)) {
      return Refuse("AccessDenied",
                    fmt::format("There were headers present in the request which were not signed: {}", name));
    }
  }
  return {};
}

}  // namespace

/// The signature of a request and its parameters, as the request gives them.
struct Authenticator::Claim {
  std::string_view credential;  ///< key/day/region/service/aws4_request
  std::string_view signed_headers, signature;
  std::string date;
  std::string content_sha256;
  bool presigned = false;
};

Sha256Digest DeriveSigningKey(std::string_view secret_key, std::string_view day, std::string_view region,
                              std::string_view service) {
  Sha256Digest key = HmacSha256(AsBytes("AWS4" + std::string(secret_key)), AsBytes(day));
  for (std::string_view step : {region, service, std::string_view("aws4_request")})
    key = HmacSha256(key, AsBytes(step));
  return key;
}

Reply<Authenticated> Authenticator::Check(const http::ServerRequest& request, const QueryParameters& query,
                                          Duration ahead) const {
  std::string_view authorization = request.headers().Get("Authorization");
  if (!authorization.empty()) return CheckHeader(request, query, ahead);
  if (!Find(query, "X-Amz-Algorithm").empty()) return CheckPresigned(request, query);
  if (!Find(query, "AWSAccessKeyId").empty()) return CheckPresignedV2(request, query);
  if (anonymous_ == Anonymous::kRefused) {
    return Refuse("AccessDenied", "Access Denied: sign the request, or run the endpoint with --anonymous");
  }
  MR_TRY(CheckSite(request.headers(), anonymous_ == Anonymous::kAnyHost));
  Authenticated who{.anonymous = true};
  if (std::string_view promised = request.headers().Get("x-amz-content-sha256"); !promised.empty()) {
    who.content_sha256 = promised;
  }
  return who;
}

Reply<Authenticated> Authenticator::CheckHeader(const http::ServerRequest& request, const QueryParameters& query,
                                                Duration ahead) const {
  std::string_view authorization = Trim(request.headers().Get("Authorization"));
  if (!authorization.starts_with(kAlgorithm) || authorization.substr(kAlgorithm.size(), 1) != " ") {
    return Refuse("InvalidRequest",
                  "Only AWS4-HMAC-SHA256 is understood in the Authorization header: set the client's signature version "
                  "to s3v4");
  }
  Claim claim;
  for (std::string_view field : Split(authorization.substr(kAlgorithm.size()), ',')) {
    field = Trim(field);
    std::size_t equals = field.find('=');
    if (equals == std::string_view::npos) continue;
    std::string_view name = field.substr(0, equals), value = field.substr(equals + 1);
    if (name == "Credential") claim.credential = value;
    if (name == "SignedHeaders") claim.signed_headers = value;
    if (name == "Signature") claim.signature = value;
  }
  claim.date = request.headers().Get("x-amz-date");
  if (claim.date.empty()) {
    auto date = ParseHttpDate(request.headers().Get("Date"));
    if (!date) return Refuse("AccessDenied", "AWS authentication requires a valid Date or x-amz-date header.");
    claim.date = FormatAmzDate(*date);
  }
  claim.content_sha256 = request.headers().Get("x-amz-content-sha256");
  if (claim.content_sha256.empty()) {
    return Refuse("InvalidRequest", "Missing required header for this request: x-amz-content-sha256");
  }
  auto when = ParseIso8601(claim.date);
  if (!when) return Refuse("AccessDenied", "AWS authentication requires a valid Date or x-amz-date header.");
  const Duration skew = clock_.Wall() + ahead - *when;
  if (skew > kMaxSkew || -skew > kMaxSkew) {
    return Refuse("RequestTimeTooSkewed",
                  "The difference between the request time and the current time is too large: set the client's clock");
  }
  return Verify(request, query, std::move(claim));
}

Reply<Authenticated> Authenticator::CheckPresigned(const http::ServerRequest& request,
                                                   const QueryParameters& query) const {
  if (Find(query, "X-Amz-Algorithm") != kAlgorithm) {
    return Refuse("AuthorizationQueryParametersError", "X-Amz-Algorithm only supports AWS4-HMAC-SHA256");
  }
  Claim claim{.presigned = true};
  claim.credential = Find(query, "X-Amz-Credential");
  claim.signed_headers = Find(query, "X-Amz-SignedHeaders");
  claim.signature = Find(query, "X-Amz-Signature");
  claim.date = Find(query, "X-Amz-Date");
  claim.content_sha256 = request.headers().Get("x-amz-content-sha256");
  if (claim.content_sha256.empty()) claim.content_sha256 = "UNSIGNED-PAYLOAD";

  std::string_view text = Find(query, "X-Amz-Expires");
  std::int64_t seconds = -1;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seconds);
  auto when = ParseIso8601(claim.date);
  if (error != std::errc() || end != text.data() + text.size() || seconds < 1 ||
      std::chrono::seconds(seconds) > kMaxPresigned || !when) {
    return Refuse("AuthorizationQueryParametersError", "X-Amz-Date or X-Amz-Expires is missing or out of range");
  }
  WallTime now = clock_.Wall();
  if (now + kMaxSkew < *when) return Refuse("AccessDenied", "Request is not yet valid");
  if (now > *when + std::chrono::seconds(seconds)) return Refuse("AccessDenied", "Request has expired.");
  return Verify(request, query, std::move(claim));
}

Reply<Authenticated> Authenticator::Verify(const http::ServerRequest& request, const QueryParameters& query,
                                           Claim claim) const {
  // The access key may contain slashes. The scope is the last four components.
  std::string_view scope = claim.credential;
  std::size_t cut = scope.size();
  for (int i = 0; i < 4 && cut != std::string_view::npos && cut > 0; ++i) cut = scope.rfind('/', cut - 1);
  std::vector<std::string_view> parts;
  if (cut != std::string_view::npos && cut > 0 && cut < scope.size()) parts = Split(scope.substr(cut + 1), '/');
  if (parts.size() != 4 || parts[2] != "s3" || parts[3] != "aws4_request" || claim.signature.empty() ||
      claim.signed_headers.empty() || !claim.date.starts_with(parts[0])) {
    return Refuse(
        claim.presigned ? "AuthorizationQueryParametersError" : "AuthorizationHeaderMalformed",
        "The authorization is malformed; expecting key/day/region/s3/aws4_request, signed headers and a signature");
  }
  if (credentials_.access_key.empty() || scope.substr(0, cut) != credentials_.access_key) {
    return Refuse("InvalidAccessKeyId", "The AWS Access Key Id you provided does not exist in our records.");
  }
  std::vector<std::string_view> names = Split(claim.signed_headers, ';');
  MR_TRY(CheckCoverage(request.headers(), names));

  auto path = PercentDecode(request.path());
  if (!path) return Refuse("InvalidURI", "Couldn't parse the specified URI.");
  // For a presigned request, claim.content_sha256 is UNSIGNED-PAYLOAD or a hash from a header.
  std::string canonical =
      fmt::format("{}\n{}\n{}\n{}\n{}\n{}", request.method(), PercentEncode(*path, true), CanonicalQuery(query),
                  CanonicalHeaders(request.headers(), names), claim.signed_headers, claim.content_sha256);
  Authenticated who;
  who.date = claim.date;
  who.scope = scope.substr(cut + 1);
  who.content_sha256 = claim.content_sha256;
  who.signing_key = DeriveSigningKey(credentials_.secret_key, parts[0], parts[1], parts[2]);
  std::string to_sign =
      fmt::format("{}\n{}\n{}\n{}", kAlgorithm, who.date, who.scope, HexEncode(Sha256(AsBytes(canonical))));
  std::string expected = HexEncode(HmacSha256(who.signing_key, AsBytes(to_sign)));
  if (!ConstantTimeEqual(expected, claim.signature)) {
    return Refuse("SignatureDoesNotMatch",
                  "The request signature we calculated does not match the signature you provided. Check your key and "
                  "signing method.");
  }
  who.seed_signature = claim.signature;
  return who;
}

}  // namespace millrace::s3d
