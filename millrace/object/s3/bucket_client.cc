#include "millrace/object/s3/bucket_client.h"

#include "millrace/base/hash/digest.h"
#include "millrace/base/hash/text_encoding.h"
#include "millrace/base/text.h"
#include "millrace/object/access_point.h"
#include "millrace/object/s3/protocol/checksums.h"
#include "millrace/object/s3/protocol/trailing_body.h"

namespace millrace::object::s3 {
namespace {

/// Adapts a Source to a request body. Destroyed with the operation's completion.
class SourceBody final : public http::BodySource {
 public:
  explicit SourceBody(Source& source) : source_(source) {}
  std::uint64_t size() const override { return source_.size(); }
  Status Read(std::uint64_t offset, MutableByteSpan into) override { return source_.Read(offset, into); }
  void OnSent(std::uint64_t end) override { source_.OnSent(end); }

 private:
  Source& source_;
};

void SetCustomerKey(std::string_view prefix, const std::string& key, http::Headers& headers) {
  if (key.empty()) return;
  Hasher md5(Hasher::Algorithm::kMd5);
  md5.Update(AsBytes(key));
  headers.Set(fmt::format("{}Algorithm", prefix), "AES256");
  headers.Set(fmt::format("{}Key", prefix), Base64Encode(AsBytes(key)));
  headers.Set(fmt::format("{}Key-Md5", prefix), Base64Encode(md5.Finish()));
}

}  // namespace

std::string QuoteETag(std::string_view etag) {
  return etag.find('"') == etag.npos ? fmt::format("\"{}\"", etag) : std::string(etag);
}

void SetConditions(std::string_view if_match, bool if_none_match, http::Headers& headers) {
  if (!if_match.empty()) headers.Set("If-Match", QuoteETag(if_match));
  if (if_none_match) headers.Set("If-None-Match", "*");
}

void SetMetadata(const std::string& content_type, const std::map<std::string, std::string>& metadata,
                 http::Headers& headers) {
  if (!content_type.empty()) headers.Set("Content-Type", content_type);
  for (const auto& [name, value] : metadata) headers.Set(fmt::format("{}{}", kMetaPrefix, name), value);
}

void SetAttributes(const Attributes& attributes, const Attributes& otherwise, http::Headers& headers) {
  for (const auto& [name, member] :
       {std::pair("X-Amz-Storage-Class", &Attributes::storage_class), std::pair("X-Amz-Acl", &Attributes::acl),
        std::pair("X-Amz-Server-Side-Encryption", &Attributes::encryption),
        std::pair("X-Amz-Server-Side-Encryption-Aws-Kms-Key-Id", &Attributes::kms_key),
        std::pair("Cache-Control", &Attributes::cache_control),
        std::pair("Content-Encoding", &Attributes::content_encoding),
        std::pair("Content-Disposition", &Attributes::content_disposition),
        std::pair("Content-Language", &Attributes::content_language), std::pair("Expires", &Attributes::expires),
        std::pair("X-Amz-Website-Redirect-Location", &Attributes::website_redirect),
        std::pair("X-Amz-Tagging", &Attributes::tagging)}) {
    const std::string& value = (attributes.*member).empty() ? otherwise.*member : attributes.*member;
    if (!value.empty()) headers.Set(name, value);
  }
}

Error WriteError(const Outcome& outcome, bool conditional) {
  const Error& error = outcome.response.error();
  if (!conditional || !outcome.ambiguous || error.code() != Code::kPreconditionFailed) return error;
  return error
      .Context(
          "the answer to an earlier try was lost, and now the condition no longer holds: the object may be what "
          "this very call wrote; read it to find out")
      .WithCode(Code::kUnavailable);
}

void EndWrite(Store& store, std::string key, std::string etag, Call call, Done<PutResult> done) {
  if (!etag.empty()) return done(PutResult{.etag = std::move(etag)});
  store.Head(key, std::move(call), [key, done = std::move(done)](Result<std::optional<ObjectInfo>> info) mutable {
    if (!info) return done(Fail(info.error().Context("asking for the ETag, which the answer to the write lacks")));
    if (!*info) return done(Fail(Code::kCorrupt, "the endpoint says that it wrote {}, but it is not there", key));
    done(PutResult{.etag = std::move((*info)->etag)});
  });
}

Operation BucketClient::NewOperation(OperationName name, std::string_view method, std::string key) const {
  return {.name = name, .method = std::string(method), .bucket = bucket_, .key = std::move(key)};
}

Operation BucketClient::NewKeyedOperation(OperationName name, std::string_view method, std::string key) const {
  Operation operation = NewOperation(name, method, std::move(key));
  SetCustomerKey("X-Amz-Server-Side-Encryption-Customer-", dispatcher().settings().customer_key, operation.headers);
  return operation;
}

void BucketClient::SetCopySource(const std::string& key, const CopyOptions& options, http::Headers& headers) const {
  const std::string& from = options.source_bucket.empty() ? bucket_ : options.source_bucket;
  const std::string path = IsArn(from) ? fmt::format("{}/object/{}", from, key) : fmt::format("/{}/{}", from, key);
  std::string source = PercentEncode(path, /*keep_slash=*/true);
  if (!options.source_version.empty())
    source += "?versionId=" + PercentEncode(options.source_version, /*keep_slash=*/false);
  headers.Set("X-Amz-Copy-Source", source);
  if (!options.source_if_match.empty()) headers.Set("X-Amz-Copy-Source-If-Match", QuoteETag(options.source_if_match));
  SetCustomerKey("X-Amz-Copy-Source-Server-Side-Encryption-Customer-", dispatcher().settings().copy_source_key,
                 headers);
}

Result<BucketClient::SentBody> BucketClient::AttachBody(Source& body, bool may_trail, Operation& operation) {
  if (may_trail && body.size() > 0 && dispatcher().dialect().takes_trailers()) {
    auto trailing = std::make_shared<TrailingBody>(body);
    trailing->SetHeaders(operation.headers);
    operation.source = trailing.get();
    operation.check = [trailing](const http::Response& response) -> Status {
      const std::string_view stored = response.headers.Get("x-amz-checksum-crc32c");
      if (stored == trailing->checksum()) return {};
      if (stored.empty()) {
        return Fail(Code::kUnsupported, "the endpoint does not say that it understood the checksum behind the body");
      }
      return Fail(Code::kCorrupt, "the endpoint says that it has bytes of the checksum {}, not {}", stored,
                  trailing->checksum());
    };
    return SentBody{.source = std::move(trailing), .trailing = true};
  }
  auto plain = std::make_shared<SourceBody>(body);
  operation.headers.Set("X-Amz-Checksum-Crc32c", MR_TRY(EncodeCrc32c(*plain)));
  operation.source = plain.get();
  return SentBody{.source = std::move(plain)};
}

void BucketClient::WarnOfOthers(const std::string& prefix) {
  if (others_seen_.exchange(true, std::memory_order_relaxed)) return;
  dispatcher().log().Warning("the endpoint lists names outside of the prefix that it was asked for; they are left out",
                             {{"bucket", Describe()}, {"prefix", prefix}});
}

}  // namespace millrace::object::s3
