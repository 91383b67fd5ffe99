#include "millrace/object/s3/protocol/signer.h"

#include <algorithm>
#include <map>

#include "millrace/base/hash/text_encoding.h"
#include "millrace/base/text.h"

namespace millrace::object::s3 {
namespace {

constexpr std::string_view kAlgorithm = "AWS4-HMAC-SHA256";

ByteSpan Span(const Sha256Digest& digest) { return {digest.data(), digest.size()}; }

/// Trims the value and replaces runs of spaces by one.
std::string CanonicalValue(std::string_view value) {
  std::string out;
  for (char c : Trim(value)) {
    if (c != ' ' || out.empty() || out.back() != ' ') out += c;
  }
  return out;
}

struct CanonicalHeaders {
  std::string lines;  // "name:value\n"…
  std::string names;  // "host;x-amz-date"
};

CanonicalHeaders Canonicalize(const http::Headers& headers) {
  std::multimap<std::string, std::string> fields;  // equal names stay in order
  for (const auto& [name, value] : headers) fields.emplace(ToLower(name), CanonicalValue(value));
  CanonicalHeaders canonical;
  std::string_view before;
  for (const auto& [name, value] : fields) {
    if (name == before) {
      canonical.lines.back() = ',';
      canonical.lines += value + "\n";
      continue;
    }
    before = name;
    canonical.lines += name + ":" + value + "\n";
    if (!canonical.names.empty()) canonical.names += ';';
    canonical.names += name;
  }
  return canonical;
}

std::string StringToSign(const Signable& request, std::string_view query, const CanonicalHeaders& headers,
                         std::string_view payload_hash, std::string_view time, std::string_view scope) {
  std::string canonical = fmt::format("{}\n{}\n{}\n{}\n{}\n{}", request.method, request.path, query, headers.lines,
                                      headers.names, payload_hash);
  return fmt::format("{}\n{}\n{}\n{}", kAlgorithm, time, scope, HexEncode(Span(Sha256(AsBytes(canonical)))));
}

}  // namespace

std::string EncodeQuery(const Query& query) {
  std::vector<std::pair<std::string, std::string>> encoded;
  encoded.reserve(query.size());
  for (const auto& [name, value] : query) {
    encoded.emplace_back(PercentEncode(name, false), PercentEncode(value, false));
  }
  std::ranges::sort(encoded);
  std::string out;
  for (const auto& [name, value] : encoded) {
    if (!out.empty()) out += '&';
    out += name + "=" + value;
  }
  return out;
}

Signer::Signer(std::string region, std::string service) : region_(std::move(region)), service_(std::move(service)) {}

std::string Signer::Scope(std::string_view date) const {
  return fmt::format("{}/{}/{}/aws4_request", date, region_, service_);
}

Sha256Digest Signer::KeyFor(const std::string& secret, std::string_view date) const {
  MutexLock lock(mutex_);
  if (key_secret_ != secret || key_date_ != date) {
    key_ = HmacSha256(AsBytes("AWS4" + secret), AsBytes(date));
    for (std::string_view step : {std::string_view(region_), std::string_view(service_), {"aws4_request"}}) {
      key_ = HmacSha256(Span(key_), AsBytes(step));
    }
    key_secret_ = secret;
    key_date_ = date;
  }
  return key_;
}

void Signer::Sign(const Signable& request, std::string_view payload_hash, const Credentials& credentials, WallTime now,
                  http::Headers& headers) const {
  std::string time = FormatAmzDate(now);
  std::string_view date = std::string_view(time).substr(0, 8);
  headers.Set("Host", std::string(request.host));
  headers.Set("X-Amz-Date", time);
  if (!credentials.session_token.empty()) headers.Set("X-Amz-Security-Token", credentials.session_token);
  CanonicalHeaders canonical = Canonicalize(headers);
  std::string scope = Scope(date);
  std::string text = StringToSign(request, request.query, canonical, payload_hash, time, scope);
  Sha256Digest signature = HmacSha256(Span(KeyFor(credentials.secret_key, date)), AsBytes(text));
  headers.Set("Authorization", fmt::format("{} Credential={}/{}, SignedHeaders={}, Signature={}", kAlgorithm,
                                           credentials.access_key, scope, canonical.names, HexEncode(Span(signature))));
}

std::string Signer::Presign(const Signable& request, Query query, const Credentials& credentials, WallTime now,
                            Duration valid_for) const {
  std::string time = FormatAmzDate(now);
  std::string_view date = std::string_view(time).substr(0, 8);
  std::string scope = Scope(date);
  query.emplace_back("X-Amz-Algorithm", kAlgorithm);
  query.emplace_back("X-Amz-Credential", credentials.access_key + "/" + scope);
  query.emplace_back("X-Amz-Date", time);
  query.emplace_back("X-Amz-Expires",
                     std::to_string(std::chrono::duration_cast<std::chrono::seconds>(valid_for).count()));
  query.emplace_back("X-Amz-SignedHeaders", "host");
  if (!credentials.session_token.empty()) query.emplace_back("X-Amz-Security-Token", credentials.session_token);
  std::string encoded = EncodeQuery(query);
  CanonicalHeaders canonical{.lines = fmt::format("host:{}\n", request.host), .names = "host"};
  std::string text = StringToSign(request, encoded, canonical, kUnsignedPayload, time, scope);
  Sha256Digest signature = HmacSha256(Span(KeyFor(credentials.secret_key, date)), AsBytes(text));
  return encoded + "&X-Amz-Signature=" + HexEncode(Span(signature));
}

}  // namespace millrace::object::s3
