#include "millrace/object/s3/requests/dialect.h"

#include <algorithm>
#include <string>
#include <vector>

#include "millrace/base/hash/digest.h"
#include "millrace/base/hash/text_encoding.h"
#include "millrace/base/text.h"
#include "millrace/object/s3/protocol/checksums.h"

namespace millrace::object::s3 {
namespace {

/// The names of servers that understand checksums behind the body (their `Server` header).
constexpr std::string_view kTakeTrailers[] = {"AmazonS3", "MinIO", "millrace"};
constexpr std::string_view kChecksumPrefix = "x-amz-checksum-";
constexpr const char* kCrc32c = "x-amz-checksum-crc32c";

bool IsChecksum(std::string_view name) { return ToLower(name).starts_with(kChecksumPrefix); }

bool HasChecksum(const http::Headers& headers) {
  return std::ranges::any_of(headers, [](const auto& header) { return IsChecksum(header.first); });
}

}  // namespace

Dialect::Dialect(bool trailers, bool checksums)
    : trailers_(trailers && checksums ? Trailers::kUnknown : Trailers::kRefused),
      checksums_(checksums ? Answer::kUnknown : Answer::kNo) {}

void Dialect::Learn(const http::Headers& sent, bool wrote, const http::Response& response) {
  LearnTrailers(sent, response);
  Answer unknown = Answer::kUnknown;
  if (HasChecksum(response.headers)) {
    checksums_.compare_exchange_strong(unknown, Answer::kYes, std::memory_order_relaxed);
  }
  unknown = Answer::kUnknown;
  if (wrote && response.status < 300 && sent.Get("if-match").starts_with('"')) {
    quoted_etags_.compare_exchange_strong(unknown, Answer::kYes, std::memory_order_relaxed);
  }
}

/// Learns from the server's name, then from the answer to an upload. Other servers bear the names, too, and know no
/// checksums at all.
void Dialect::LearnTrailers(const http::Headers& sent, const http::Response& response) {
  Trailers now = trailers_.load(std::memory_order_relaxed);
  if (now == Trailers::kUnknown) {
    const std::string_view server = response.headers.Get("server");
    const bool known =
        std::ranges::any_of(kTakeTrailers, [&](std::string_view name) { return server.starts_with(name); });
    const Trailers learned = known ? Trailers::kNamed : Trailers::kRefused;
    if (trailers_.compare_exchange_strong(now, learned, std::memory_order_relaxed)) now = learned;
  }
  if (now != Trailers::kNamed || response.status >= 300) return;
  const std::string_view checksum = sent.Get(kCrc32c);
  if (checksum.empty() || response.headers.Get(kCrc32c) != checksum) return;
  trailers_.compare_exchange_strong(now, Trailers::kTaken, std::memory_order_relaxed);
}

bool Dialect::MayRefuseChecksums(const http::Headers& sent) const {
  return checksums_.load(std::memory_order_relaxed) == Answer::kUnknown && HasChecksum(sent) &&
         !sent.Has("x-amz-trailer");
}

Status ReplaceChecksums(http::Headers& headers, ByteSpan body, http::BodySource* source) {
  std::vector<std::string> names;
  for (const auto& [name, value] : headers) {
    if (IsChecksum(name)) names.push_back(name);
  }
  for (const std::string& name : names) headers.Remove(name);
  const std::uint64_t size = source ? source->size() : body.size();
  if (names.empty() || size == 0 || headers.Has("content-md5")) return {};
  Hasher hasher(Hasher::Algorithm::kMd5);
  if (source) {
    MR_TRY(ReadThrough(*source, [&](ByteSpan bytes) { hasher.Update(bytes); }));
  } else {
    hasher.Update(body);
  }
  headers.Set("Content-MD5", Base64Encode(hasher.Finish()));
  return {};
}

void UnquoteIfMatch(http::Headers& headers) {
  std::string_view etag = headers.Get("if-match");
  if (etag.size() < 2 || !etag.starts_with('"') || !etag.ends_with('"')) return;
  headers.Set("If-Match", std::string(etag.substr(1, etag.size() - 2)));
}

}  // namespace millrace::object::s3
