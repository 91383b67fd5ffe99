#include "millrace/object/s3/multipart_uploads.h"

#include <algorithm>
#include <utility>

#include "millrace/base/hash/digest.h"
#include "millrace/base/hash/text_encoding.h"
#include "millrace/object/rules.h"
#include "millrace/object/s3/protocol/checksums.h"
#include "millrace/object/s3/protocol/xml.h"
#include "millrace/xml/xml.h"

namespace millrace::object::s3 {
namespace {

Status CheckPart(const std::string& key, int number, std::uint64_t size, const Limits& limits) {
  MR_TRY(CheckKey(key));
  if (number < 1 || number > limits.max_parts) {
    return Fail(Code::kInvalidArgument, "parts must be numbered 1 to {}, not {}", limits.max_parts, number);
  }
  if (size > limits.max_part)
    return Fail(Code::kInvalidArgument, "a part cannot have {} bytes; lower --part-size", size);
  return {};
}

/// The ETag of an object made of these parts: the MD5 of the parts' MD5s. Empty if the parts are encrypted, because
/// their ETags are not MD5s then.
std::string ETagOf(const std::vector<PartInfo>& parts) {
  Hasher hasher(Hasher::Algorithm::kMd5);
  for (const PartInfo& part : parts) {
    auto digest = HexDecode(part.etag);
    if (!digest || digest->size() != sizeof(Md5Digest)) return "";
    hasher.Update(*digest);
  }
  return fmt::format("{}-{}", HexEncode(hasher.Finish()), parts.size());
}

}  // namespace

void MultipartUploads::Create(std::string key, PutOptions options, Call call, Done<std::string> done) {
  if (Status good = CheckKey(key); !good) return done(Fail(good.error()));
  if (options.tags_of) return CreateTagged(std::move(key), std::move(options), std::move(call), std::move(done));
  CreateWith("", std::move(key), std::move(options), std::move(call), std::move(done));
}

void MultipartUploads::CreateTagged(std::string key, PutOptions options, Call call, Done<std::string> done) {
  const PutOptions::TaggedObject from = *std::exchange(options.tags_of, std::nullopt);
  Operation operation = bucket_.NewOperation("GetObjectTagging", "GET", from.key);
  if (!from.bucket.empty()) operation.bucket = from.bucket;
  operation.query = {{"tagging", ""}};
  bucket_.RunThen(std::move(operation), call,
                  [this, key = std::move(key), options = std::move(options), call,
                   done = std::move(done)](Outcome outcome) mutable {
                    auto tags = outcome.response ? ParseTags(outcome.response->body) : Fail(outcome.response.error());
                    if (!tags) return done(Fail(tags.error().Context("reading the tags that the copy must have")));
                    CreateWith(EncodeQuery(*tags), std::move(key), std::move(options), std::move(call),
                               std::move(done));
                  });
}

void MultipartUploads::CreateWith(std::string tags, std::string key, PutOptions options, Call call,
                                  Done<std::string> done) {
  Operation operation = bucket_.NewKeyedOperation("CreateMultipartUpload", "POST", key);
  operation.query = {{"uploads", ""}};
  if (!tags.empty()) operation.headers.Set("X-Amz-Tagging", tags);
  SetMetadata(options.content_type, options.metadata, operation.headers);
  SetAttributes(options.attributes, bucket_.dispatcher().settings().new_objects, operation.headers);
  bool plain = !options.uploads_only && plain_uploads_.load(std::memory_order_relaxed);
  if (!plain) {
    operation.headers.Set("X-Amz-Checksum-Algorithm", "CRC32C");
    operation.headers.Set("X-Amz-Checksum-Type", "FULL_OBJECT");
  }
  bucket_.RunThen(std::move(operation), call,
                  [this, plain, tags = std::move(tags), key = std::move(key), options = std::move(options), call,
                   done = std::move(done)](Outcome outcome) mutable {
                    if (!outcome.response) return done(Fail(outcome.response.error()));
                    auto upload_id = ParseUploadId(outcome.response->body);
                    if (!upload_id || plain || options.uploads_only ||
                        !outcome.response->headers.Get("server").starts_with("MinIO")) {
                      return done(std::move(upload_id));
                    }
                    // MinIO refuses to copy parts into an upload with a checksum algorithm, but checks the checksums of
                    // parts even without one. So start again without.
                    plain_uploads_.store(true, std::memory_order_relaxed);
                    Abort(key, *std::move(upload_id), call,
                          [this, tags = std::move(tags), key, options = std::move(options), call,
                           done = std::move(done)](Status) mutable {
                            CreateWith(std::move(tags), std::move(key), std::move(options), std::move(call),
                                       std::move(done));
                          });
                  });
}

void MultipartUploads::UploadPart(std::string key, std::string upload_id, int number, Payload body, Call call,
                                  Done<PartInfo> done) {
  if (Status good = CheckPart(key, number, body.size(), store_.limits()); !good) return done(Fail(good.error()));
  Operation operation = bucket_.NewKeyedOperation("UploadPart", "PUT", std::move(key));
  operation.body = body;
  operation.headers.Set("X-Amz-Checksum-Crc32c", EncodeCrc32c(body));
  SendPart(std::move(operation), std::move(upload_id), number, body.size(), std::move(call), std::move(done));
}

void MultipartUploads::UploadPartFrom(std::string key, std::string upload_id, int number, Source& body, Call call,
                                      Done<PartInfo> done) {
  if (Status good = CheckPart(key, number, body.size(), store_.limits()); !good) return done(Fail(good.error()));
  Operation operation = bucket_.NewKeyedOperation("UploadPart", "PUT", key);
  auto attached = bucket_.AttachBody(body, /*may_trail=*/true, operation);
  if (!attached) return done(Fail(attached.error()));
  SendPart(std::move(operation), upload_id, number, body.size(), call,
           [this, key = std::move(key), upload_id, number, &body, call, sent = *std::move(attached),
            done = std::move(done)](Result<PartInfo> part) mutable {
             if (part || !sent.Refused(part.error())) return done(std::move(part));
             bucket_.dispatcher().dialect().ForgoTrailers();
             UploadPartFrom(std::move(key), std::move(upload_id), number, body, std::move(call), std::move(done));
           });
}

void MultipartUploads::SendPart(Operation operation, std::string upload_id, int number, std::uint64_t size, Call call,
                                Done<PartInfo> done) {
  operation.query = {{"partNumber", std::to_string(number)}, {"uploadId", std::move(upload_id)}};
  bucket_.RunOperation<PartInfo>(std::move(operation), std::move(call), std::move(done),
                                 [number, size](Outcome outcome) -> Result<PartInfo> {
                                   if (!outcome.response) return Fail(outcome.response.error());
                                   const http::Headers& headers = outcome.response->headers;
                                   // Servers without checksums do not return it, and then the completion need not send
                                   // it.
                                   return PartInfo{.number = number,
                                                   .etag = xml::Unquote(headers.Get("etag")),
                                                   .size = size,
                                                   .checksum = std::string(headers.Get("x-amz-checksum-crc32c"))};
                                 });
}

void MultipartUploads::CopyPart(std::string key, std::string upload_id, int number, std::string source, ByteRange range,
                                CopyOptions options, Call call, Done<PartInfo> done) {
  Status good = CheckPart(key, number, range.length, store_.limits());
  if (good) good = CheckKey(source);
  if (good && range.length == 0) good = Fail(Code::kInvalidArgument, "a copied part needs at least one byte");
  if (!good) return done(Fail(good.error()));
  Operation operation = bucket_.NewKeyedOperation("UploadPartCopy", "PUT", std::move(key));
  operation.error_may_follow_200 = true;
  operation.query = {{"partNumber", std::to_string(number)}, {"uploadId", std::move(upload_id)}};
  bucket_.SetCopySource(source, options, operation.headers);
  operation.headers.Set("X-Amz-Copy-Source-Range",
                        fmt::format("bytes={}-{}", range.offset, range.offset + range.length - 1));
  bucket_.RunOperation<PartInfo>(std::move(operation), std::move(call), std::move(done),
                                 [number, size = range.length](Outcome outcome) -> Result<PartInfo> {
                                   if (!outcome.response) return Fail(outcome.response.error());
                                   WrittenDocument written = MR_TRY(ParseWritten(outcome.response->body));
                                   if (written.etag.empty()) return Fail(Code::kCorrupt, "the answer names no ETag");
                                   return PartInfo{.number = number,
                                                   .etag = std::move(written.etag),
                                                   .size = size,
                                                   .checksum = std::move(written.checksum_crc32c)};
                                 });
}

void MultipartUploads::Complete(std::string key, std::string upload_id, std::vector<PartInfo> parts, PutOptions options,
                                Call call, Done<PutResult> done) {
  Status good = CheckKey(key);
  if (good) good = CheckPartOrder(parts, store_.limits());
  if (!good) return done(Fail(good.error()));
  Operation operation = bucket_.NewKeyedOperation("CompleteMultipartUpload", "POST", key);
  operation.error_may_follow_200 = true;
  operation.query = {{"uploadId", std::move(upload_id)}};
  operation.own_body = CompleteDocument(parts);
  operation.headers.Set("Content-Type", "application/xml");
  SetConditions(options.if_match, options.if_none_match, operation.headers);
  bool conditional = options.if_none_match || !options.if_match.empty();
  bucket_.RunThen(std::move(operation), call,
                  [this, key = std::move(key), etag = ETagOf(parts), conditional, call,
                   done = std::move(done)](Outcome outcome) mutable {
                    if (outcome.response) {
                      auto written = ParseWritten(outcome.response->body);
                      if (!written) return done(Fail(written.error()));
                      return EndWrite(store_, std::move(key), std::move(written->etag), call, std::move(done));
                    }
                    Error error = WriteError(outcome, conditional);
                    if (!outcome.ambiguous || outcome.s3_code != "NoSuchUpload" || etag.empty())
                      return done(Fail(error));
                    // The upload is gone after a try whose response was lost. That try may have completed it.
                    store_.Head(std::move(key), std::move(call),
                                [etag, error, done = std::move(done)](Result<std::optional<ObjectInfo>> info) mutable {
                                  if (info && *info && (*info)->etag == etag) return done(PutResult{.etag = etag});
                                  done(Fail(error));
                                });
                  });
}

void MultipartUploads::Abort(std::string key, std::string upload_id, Call call, Done<void> done) {
  if (Status good = CheckKey(key); !good) return done(Fail(good.error()));
  Operation operation = bucket_.NewOperation("AbortMultipartUpload", "DELETE", std::move(key));
  operation.query = {{"uploadId", std::move(upload_id)}};
  bucket_.RunOperation<void>(std::move(operation), std::move(call), std::move(done), [](Outcome outcome) -> Status {
    if (outcome.response || (outcome.ambiguous && outcome.s3_code == "NoSuchUpload")) return {};
    return Fail(outcome.response.error());
  });
}

void MultipartUploads::ListParts(std::string key, std::string upload_id, Call call, Done<std::vector<PartInfo>> done) {
  if (Status good = CheckKey(key); !good) return done(Fail(good.error()));
  ListPartsFrom(std::move(key), std::move(upload_id), "", {}, std::move(call), std::move(done));
}

void MultipartUploads::ListPartsFrom(std::string key, std::string upload_id, std::string marker,
                                     std::vector<PartInfo> before, Call call, Done<std::vector<PartInfo>> done) {
  Operation operation = bucket_.NewKeyedOperation("ListParts", "GET", key);
  operation.query = {{"uploadId", upload_id}};
  if (!marker.empty()) operation.query.emplace_back("part-number-marker", marker);
  bucket_.RunThen(std::move(operation), call,
                  [this, key = std::move(key), upload_id = std::move(upload_id), marker = std::move(marker),
                   parts = std::move(before), call, done = std::move(done)](Outcome outcome) mutable {
                    if (!outcome.response) return done(Fail(outcome.response.error()));
                    auto page = ParsePartsPage(outcome.response->body);
                    if (!page) return done(Fail(page.error()));
                    std::ranges::move(page->parts, std::back_inserter(parts));
                    if (page->next_marker.empty()) return done(std::move(parts));
                    if (page->parts.empty() || page->next_marker == marker) {
                      return done(Fail(Code::kCorrupt, "the list of parts of {} does not end", key));
                    }
                    ListPartsFrom(std::move(key), std::move(upload_id), std::move(page->next_marker), std::move(parts),
                                  std::move(call), std::move(done));
                  });
}

void MultipartUploads::List(std::string prefix, Call call, Done<std::vector<UploadInfo>> done) {
  ListFrom(std::move(prefix), "", "", {}, std::move(call), std::move(done));
}

void MultipartUploads::ListFrom(std::string prefix, std::string key_marker, std::string id_marker,
                                std::vector<UploadInfo> before, Call call, Done<std::vector<UploadInfo>> done) {
  Operation operation = bucket_.NewOperation("ListMultipartUploads", "GET");
  // Without encoding-type: Ceph's gateway encodes the names then, and does not say so.
  operation.query = {{"uploads", ""}, {"prefix", prefix}};
  if (!key_marker.empty()) operation.query.emplace_back("key-marker", key_marker);
  if (!id_marker.empty()) operation.query.emplace_back("upload-id-marker", id_marker);
  bucket_.RunThen(
      std::move(operation), call,
      [this, prefix = std::move(prefix), key_marker = std::move(key_marker), id_marker = std::move(id_marker),
       uploads = std::move(before), call, done = std::move(done)](Outcome outcome) mutable {
        if (!outcome.response) return done(Fail(outcome.response.error()));
        auto page = ParseUploadsPage(outcome.response->body);
        if (!page) return done(Fail(page.error()));
        auto is_outside = [&](const UploadInfo& upload) { return !upload.key.starts_with(prefix); };
        if (std::erase_if(page->uploads, is_outside) > 0) bucket_.WarnOfOthers(prefix);
        std::ranges::move(page->uploads, std::back_inserter(uploads));
        if (page->next_key.empty()) return done(std::move(uploads));
        if (page->next_key == key_marker && page->next_upload_id == id_marker) {
          return done(Fail(Code::kCorrupt, "the list of uploads to {} does not end", bucket_.Describe()));
        }
        ListFrom(std::move(prefix), std::move(page->next_key), std::move(page->next_upload_id), std::move(uploads),
                 std::move(call), std::move(done));
      });
}

}  // namespace millrace::object::s3
