#include "millrace/object/s3/object_body.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <utility>

#include "millrace/base/text.h"
#include "millrace/object/s3/bucket_client.h"
#include "millrace/object/s3/protocol/checksums.h"
#include "millrace/xml/xml.h"

namespace millrace::object::s3 {
namespace {

/// A try that brings as much is no failure. Less is likely to be one that repeats.
constexpr std::uint64_t kProgress = 64 * kKiB;

/// Checks that this is the response to a Get of `range`.
Status CheckRange(const http::Response& response, const std::optional<ByteRange>& range) {
  if (response.status != 206) {
    if (range && range->offset > 0) return Fail(Code::kUnsupported, "the endpoint ignores ranges");
    return {};
  }
  auto got = ParseContentRange(response.headers.Get("content-range"));
  if (!range || !got || got->first != range->offset) {
    return Fail(Code::kCorrupt, "the answer has the range {:?}, which is not what was asked for",
                response.headers.Get("content-range").substr(0, 80));
  }
  std::uint64_t expected = std::min(range->length, got->total - range->offset);
  if (got->last - got->first + 1 != expected || response.received != expected) {
    return Fail(Code::kCorrupt, "the answer has {} bytes where {} were asked for", response.received, expected);
  }
  return {};
}

/// Returns the ETag without the mark of a weak one.
std::string_view Strong(std::string_view etag) {
  if (etag.starts_with("W/")) etag.remove_prefix(2);
  return etag.size() >= 2 && etag.front() == '"' && etag.back() == '"' ? etag.substr(1, etag.size() - 2) : etag;
}

}  // namespace

std::optional<ContentRange> ParseContentRange(std::string_view text) {
  ContentRange range;
  std::size_t dash = text.find('-'), slash = text.find('/');
  if (!text.starts_with("bytes ") || dash == text.npos || slash == text.npos || slash < dash) return std::nullopt;
  bool good = ParseNumber(text.substr(6, dash - 6), range.first) &&
              ParseNumber(text.substr(dash + 1, slash - dash - 1), range.last) &&
              ParseNumber(text.substr(slash + 1), range.total);
  if (!good || range.first > range.last || range.last >= range.total) return std::nullopt;
  return range;
}

bool ParseNumber(std::string_view text, std::uint64_t& value) {
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() && !text.empty();
}

ObjectInfo InfoFromHeaders(std::string key, const http::Headers& headers) {
  ObjectInfo info{.key = std::move(key),
                  .etag = xml::Unquote(headers.Get("etag")),
                  .content_type = std::string(headers.Get("content-type"))};
  ParseNumber(headers.Get("content-length"), info.size);
  if (auto modified = ParseHttpDate(headers.Get("last-modified"))) info.modified = *modified;
  info.checksum = WholeChecksum(headers);
  auto get = [&](const char* name) { return std::string(headers.Get(name)); };
  std::uint64_t tags = 0;
  ParseNumber(headers.Get("x-amz-tagging-count"), tags);
  info.attributes =
      std::make_shared<Attributes>(Attributes{.storage_class = get("x-amz-storage-class"),
                                              .encryption = get("x-amz-server-side-encryption"),
                                              .kms_key = get("x-amz-server-side-encryption-aws-kms-key-id"),
                                              .cache_control = get("cache-control"),
                                              .content_encoding = get("content-encoding"),
                                              .content_disposition = get("content-disposition"),
                                              .content_language = get("content-language"),
                                              .expires = get("expires"),
                                              .website_redirect = get("x-amz-website-redirect-location"),
                                              .tags = static_cast<int>(tags),
                                              .tagging = "",
                                              .restore = get("x-amz-restore"),
                                              .lock_mode = get("x-amz-object-lock-mode"),
                                              .lock_until = get("x-amz-object-lock-retain-until-date"),
                                              .legal_hold = get("x-amz-object-lock-legal-hold")});
  for (const auto& [name, value] : headers) {
    std::string lower = ToLower(name);
    if (lower.starts_with(kMetaPrefix)) info.metadata.emplace(lower.substr(kMetaPrefix.size()), value);
  }
  return info;
}

void SetRange(const ByteRange& range, http::Headers& headers) {
  std::uint64_t last = range.offset + std::min(range.length - 1, ~std::uint64_t{0} - range.offset);
  headers.Set("Range", fmt::format("bytes={}-{}", range.offset, last));
}

Status BufferSink::Take(std::uint64_t offset, ByteSpan bytes) {
  if (!first_) first_ = offset;
  std::memcpy(into_.data() + (offset - *first_), bytes.data(), bytes.size());
  return {};
}

std::optional<ByteRange> ObjectBody::range() const {
  if (before_ == 0) return asked_;
  const ByteRange whole = asked_.value_or(ByteRange{0, limit_});
  return ByteRange{whole.offset + before_, whole.length - before_};
}

void ObjectBody::Begin(const http::Headers& headers) {
  const auto part = ParseContentRange(headers.Get("content-range"));
  const auto wanted = range();
  const std::string_view etag = Strong(headers.Get("etag"));
  received_ = 0;
  has_range_ = (part ? part->first : 0) == (wanted ? wanted->offset : 0);
  has_version_ = before_ == 0 || etag == Strong(if_match_);
  if (!has_range_ || before_ > 0) return;
  may_go_on_ = !if_match_.empty() && etag == Strong(if_match_) && !headers.Has("content-encoding");
  first_headers_ = headers;
  sink_.Begin(InfoFromHeaders({}, headers));
}

Status ObjectBody::Take(std::uint64_t offset, ByteSpan bytes) {
  if (!has_range_) return {};
  if (!has_version_) return Fail(Code::kPreconditionFailed, "the object was replaced while it was read; read it again");
  MR_TRY(sink_.Take((asked_ ? asked_->offset : 0) + before_ + offset, bytes));
  received_ = offset + bytes.size();
  return {};
}

bool ObjectBody::GoOn(Operation& operation) {
  const std::uint64_t brought = has_range_ && has_version_ ? std::exchange(received_, 0) : 0;
  const std::uint64_t all = asked_ ? asked_->length : limit_;
  if (!may_go_on_ || brought == 0 || before_ + brought >= all) return false;
  before_ += brought;
  SetRange(*range(), operation.headers);
  operation.headers.Remove("X-Amz-Checksum-Mode");
  operation.target.sink_limit = limit_ - before_;
  return brought >= kProgress;
}

Status ObjectBody::Check(const http::Response& response) {
  received_ = 0;  // if the answer is refused, another one takes its place
  return CheckRange(response, range());
}

bool ObjectBody::MayBeCompressed(const http::Response& response) const {
  const std::string_view encoding = response.headers.Get("content-encoding");
  return response.status == 200 && !encoding.empty() && encoding != "identity" &&
         !response.headers.Has("content-length") && response.received != limit_;
}

bool ObjectBody::IsWhole(const http::Response& response) const {
  const auto part = ParseContentRange(response.headers.Get("content-range"));
  return response.status != 206 || (part && before_ + response.received == part->total);
}

GetResult ObjectBody::ResultOf(std::string key, const http::Response& response) const {
  ObjectInfo info = InfoFromHeaders(std::move(key), response.headers);
  auto part = ParseContentRange(response.headers.Get("content-range"));
  info.size = response.status == 206 && part ? part->total : response.received;
  if (before_ > 0) info.checksum = WholeChecksum(first_headers_);
  return {.bytes = before_ + response.received, .info = std::move(info)};
}

}  // namespace millrace::object::s3
