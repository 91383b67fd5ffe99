#include <algorithm>
#include <span>

#include "millrace/base/hash/text_encoding.h"
#include "millrace/base/text.h"
#include "millrace/s3d/operations/conditions.h"
#include "millrace/s3d/operations/documents.h"
#include "millrace/s3d/operations/operation_context.h"
#include "millrace/s3d/operations/receive.h"
#include "millrace/s3d/protocol/payload.h"
#include "millrace/s3d/protocol/policy.h"
#include "millrace/xml/xml.h"

namespace millrace::s3d {
namespace {

constexpr std::string_view kMetadataPrefix = "x-amz-meta-";
constexpr std::size_t kMaxMetadataBytes = 2 * kKiB;     // S3's limit: names without the prefix, and values
constexpr std::uint64_t kMaxDeleteDocument = 4 * kMiB;  // 1,000 keys of 1,024 bytes, escaped

constexpr std::string_view kStoredFields[] = {
    "content-type",     "cache-control", "content-disposition", "content-encoding",
    "content-language", "expires",       "x-amz-storage-class", "x-amz-website-redirect-location",
};

/// Header fields that ask for something that this endpoint does not do.
constexpr std::string_view kUnkeptPromises[] = {
    "x-amz-tagging",
    "x-amz-object-lock-mode",
    "x-amz-object-lock-retain-until-date",
    "x-amz-object-lock-legal-hold",
    "x-amz-server-side-encryption-customer-algorithm",
    "x-amz-server-side-encryption-aws-kms-key-id",
    "x-amz-write-offset-bytes",
};

/// The storage classes of general purpose buckets. An object has the class as an attribute only.
constexpr std::string_view kStorageClasses[] = {
    "STANDARD", "REDUCED_REDUNDANCY", "STANDARD_IA", "ONEZONE_IA", "INTELLIGENT_TIERING", "GLACIER_IR",
    "GLACIER",  "DEEP_ARCHIVE",
};
/// Canned ACLs that leave an object to its owner. Others are refused, as by S3 unless a bucket's owner enables ACLs.
/// Source: "Controlling ownership of objects and disabling ACLs for your bucket", Amazon S3 User Guide.
constexpr std::string_view kOwnerAcls[] = {"private", "bucket-owner-full-control"};
constexpr std::string_view kOtherAcls[] = {"public-read", "public-read-write", "authenticated-read", "aws-exec-read",
                                           "bucket-owner-read"};

bool Has(std::span<const std::string_view> words, std::string_view word) {
  return std::ranges::find(words, word) != words.end();
}

Reply<void> CheckStorageClass(const http::Headers& headers) {
  const std::string_view name = headers.Get("x-amz-storage-class");
  if (name.empty() || Has(kStorageClasses, name)) return {};
  return Refuse("InvalidStorageClass", "The storage class you specified is not valid");
}

Reply<void> CheckAcl(const http::Headers& headers) {
  const std::string_view canned = headers.Get("x-amz-acl");
  const bool grants =
      std::ranges::any_of(headers, [](const auto& field) { return ToLower(field.first).starts_with("x-amz-grant-"); });
  if (grants || Has(kOtherAcls, canned)) {
    return Refuse("AccessControlListNotSupported", "The bucket does not allow ACLs");
  }
  if (canned.empty() || Has(kOwnerAcls, canned)) return {};
  return Refuse("InvalidArgument", fmt::format("x-amz-acl has no value {}", canned));
}

/// Removes aws-chunked, which is the coding of the transfer and not of the content.
std::string WithoutAwsChunked(std::string_view encodings) {
  std::string kept;
  for (std::string_view encoding : Split(encodings, ',')) {
    encoding = Trim(encoding);
    if (encoding.empty() || ToLower(encoding) == "aws-chunked") continue;
    if (!kept.empty()) kept += ",";
    kept += encoding;
  }
  return kept;
}

/// Returns ETag, dates, stored fields and, if the request asks for them, checksums.
http::Headers ObjectHeaders(const OperationContext& context, const Object& object, bool whole) {
  http::Headers headers = context.CommonHeaders();
  headers.Set("ETag", Quote(object.etag));
  headers.Set("Last-Modified", FormatHttpDate(object.modified));
  headers.Set("Accept-Ranges", "bytes");
  headers.Set("Content-Type", "binary/octet-stream");
  for (const auto& [name, value] : object.attributes) headers.Set(name, value);
  if (whole && object.checksum && context.Header("x-amz-checksum-mode") == "ENABLED") {
    headers.Set(ChecksumHeader(object.checksum->kind), object.checksum->value);
    headers.Set("x-amz-checksum-type", std::string(ChecksumTypeName(object.checksum->type)));
  }
  for (std::string_view name :
       {"content-type", "content-language", "expires", "cache-control", "content-disposition", "content-encoding"}) {
    std::string_view wanted = context.Parameter(fmt::format("response-{}", name));
    if (!wanted.empty()) headers.Set(name, std::string(wanted));
  }
  return headers;
}

/// The range of a read and the status of its answer.
struct Reading {
  int status = 200;
  BodyRange span;
  int parts = 0;  ///< the object's number of parts, if the request names a part
};

Reply<Reading> DecideReading(const OperationContext& context, const Object& object) {
  Reading reading{200, {0, object.size}, 0};
  if (context.Asks("partNumber")) {
    if (!context.Header("Range").empty()) {
      return Refuse("InvalidRequest", "Cannot specify both Range header and partNumber query parameter");
    }
    std::uint64_t number = MR_TRY(context.Number("partNumber", 1, 1, 10'000));
    std::vector<std::uint64_t> sizes = object.part_sizes;
    if (sizes.empty()) sizes.push_back(object.size);
    if (number > sizes.size()) return Refuse("InvalidPartNumber", "The requested partnumber is not satisfiable.");
    reading.span = {0, sizes[number - 1]};
    for (std::uint64_t i = 0; i + 1 < number; ++i) reading.span.offset += sizes[i];
    reading.status = 206;
    reading.parts = static_cast<int>(object.part_sizes.size());
    return reading;
  }
  std::string_view condition = context.Header("If-Range");
  if (!condition.empty() && xml::Unquote(condition) != object.etag && condition != FormatHttpDate(object.modified)) {
    return reading;
  }
  if (auto span = MR_TRY(ParseRange(context.Header("Range"), object.size))) {
    reading.span = *span;
    reading.status = 206;
  }
  return reading;
}

Reply<void> SendBytes(OperationContext& context, int status, http::Headers headers, const Object& object,
                      BodyRange span) {
  Extents extents = Slice(object.extents, span.offset, span.length);
  if (context.request.method() == "HEAD") extents.clear();
  // Opens the first file before the answer starts, so that a failure still becomes an error answer.
  std::shared_ptr<const UniqueFd> fd;
  if (!extents.empty()) fd = MR_TRY(extents.front().blob->Open());
  MR_TRY(context.response.Start(status, std::move(headers), span.length));
  for (std::size_t i = 0; i < extents.size(); ++i) {
    if (i > 0) fd = MR_TRY(extents[i].blob->Open());
    MR_TRY(context.response.WriteFile(fd->get(), extents[i].offset, extents[i].length));
  }
  MR_TRY(context.response.Finish());
  return {};
}

}  // namespace

std::string Quote(std::string_view etag) { return fmt::format("\"{}\"", etag); }

Reply<Attributes> StoredAttributes(const http::Headers& headers) {
  for (std::string_view name : kUnkeptPromises) {
    if (headers.Has(name)) return Refuse("NotImplemented", fmt::format("{} is not implemented here", name));
  }
  if (std::string_view sse = headers.Get("x-amz-server-side-encryption"); !sse.empty() && sse != "AES256") {
    return Refuse("NotImplemented", "x-amz-server-side-encryption is not implemented here");
  }
  MR_TRY(CheckStorageClass(headers));
  MR_TRY(CheckAcl(headers));
  Attributes attributes;
  std::size_t metadata_bytes = 0;
  for (const auto& [field, value] : headers) {
    std::string name = ToLower(field);
    bool is_metadata = name.starts_with(kMetadataPrefix);
    if (!is_metadata && std::ranges::find(kStoredFields, name) == std::end(kStoredFields)) continue;
    if (is_metadata) metadata_bytes += name.size() - kMetadataPrefix.size() + value.size();
    std::string kept = name == "content-encoding" ? WithoutAwsChunked(value) : value;
    if (kept.empty() && !is_metadata) continue;
    if (name == "x-amz-storage-class" && kept == "STANDARD") continue;
    if (!attributes.empty() && attributes.back().first == name) {
      attributes.back().second += "," + kept;
    } else {
      attributes.emplace_back(std::move(name), std::move(kept));
    }
  }
  if (metadata_bytes > kMaxMetadataBytes) {
    return Refuse("MetadataTooLarge", "Your metadata headers exceed the maximum allowed metadata size.");
  }
  std::ranges::sort(attributes);
  return attributes;
}

Reply<void> GetObject(OperationContext& context) {
  ObjectPtr object = MR_TRY(context.storage.Get(context.bucket, context.key));
  ReadVerdict verdict = CheckRead(context.request.headers(), "", *object);
  if (verdict == ReadVerdict::kFailed) {
    return Refuse("PreconditionFailed", "At least one of the pre-conditions you specified did not hold.");
  }
  if (verdict == ReadVerdict::kNotModified) return context.SendEmpty(304, ObjectHeaders(context, *object, false));
  Reading reading = MR_TRY(DecideReading(context, *object));
  bool whole = reading.span.length == object->size;
  http::Headers headers = ObjectHeaders(context, *object, whole);
  if (reading.status == 206) {
    std::uint64_t end = reading.span.offset + reading.span.length;
    if (reading.span.length > 0) {
      headers.Set("Content-Range", fmt::format("bytes {}-{}/{}", reading.span.offset, end - 1, object->size));
    } else {
      reading.status = 200;
    }
  }
  if (reading.parts > 0) headers.Set("x-amz-mp-parts-count", std::to_string(reading.parts));
  return SendBytes(context, reading.status, std::move(headers), *object, reading.span);
}

Reply<void> PutObject(OperationContext& context) {
  WriteCondition condition = MR_TRY(context.Condition());
  Object object;
  object.attributes = MR_TRY(StoredAttributes(context.request.headers()));
  MR_TRY(context.storage.HeadBucket(context.bucket));
  Payload payload = MR_TRY(Payload::Open(context.request, context.who, kMaxPut));
  object.extents = MR_TRY(ReceiveBody(payload, context.storage.blobs(), object.size));
  object.etag = HexEncode(payload.md5());
  object.checksum = payload.checksum();
  object.modified = context.storage.Now();
  ObjectPtr stored = MR_TRY(context.storage.Put(context.bucket, context.key, std::move(object), condition));

  http::Headers headers = context.CommonHeaders();
  headers.Set("ETag", Quote(stored->etag));
  if (stored->checksum) {
    headers.Set(ChecksumHeader(stored->checksum->kind), stored->checksum->value);
    headers.Set("x-amz-checksum-type", std::string(ChecksumTypeName(stored->checksum->type)));
  }
  return context.SendEmpty(200, std::move(headers));
}

Reply<ObjectPtr> CopySource(OperationContext& context) {
  std::string_view source = context.Header("x-amz-copy-source");
  std::size_t mark = source.find('?');
  if (mark != std::string_view::npos && source.substr(mark) != "?versionId=null") {
    return Refuse("NoSuchVersion", "The specified version does not exist.");
  }
  auto decoded = PercentDecode(source.substr(0, mark));
  if (!decoded) return Refuse("InvalidArgument", "Invalid copy source encoding");
  std::string_view path = *decoded;
  if (path.starts_with('/')) path.remove_prefix(1);
  std::size_t slash = path.find('/');
  if (slash == std::string_view::npos || slash == 0 || slash + 1 == path.size()) {
    return Refuse("InvalidArgument", "Copy Source must mention the source bucket and key: sourcebucket/sourcekey");
  }
  ObjectPtr object = MR_TRY(context.storage.Get(path.substr(0, slash), path.substr(slash + 1)));
  if (CheckRead(context.request.headers(), "x-amz-copy-source-", *object) != ReadVerdict::kServe) {
    return Refuse("PreconditionFailed", "At least one of the pre-conditions you specified did not hold.");
  }
  return object;
}

Reply<void> CopyObject(OperationContext& context) {
  WriteCondition condition = MR_TRY(context.Condition());
  ObjectPtr source = MR_TRY(CopySource(context));
  if (source->size > kMaxPut) {
    return Refuse("InvalidRequest", "The specified copy source is larger than the maximum allowable size: 5368709120");
  }
  std::string_view directive = context.Header("x-amz-metadata-directive");
  if (!directive.empty() && directive != "COPY" && directive != "REPLACE") {
    return Refuse("InvalidArgument", "Unknown metadata directive.");
  }
  auto own = PercentDecode(context.Header("x-amz-copy-source"));
  std::string self = context.bucket + "/" + context.key;
  if (directive != "REPLACE" && own && (*own == self || *own == "/" + self)) {
    return Refuse("InvalidRequest",
                  "This copy request is illegal because it is trying to copy an object to itself without changing the "
                  "object's metadata, storage class, website redirect location or encryption attributes.");
  }
  // Both objects share the bytes. They never change, and are removed with the last object that names them.
  Object copy = *source;
  copy.modified = context.storage.Now();
  if (directive == "REPLACE") copy.attributes = MR_TRY(StoredAttributes(context.request.headers()));
  ObjectPtr stored = MR_TRY(context.storage.Put(context.bucket, context.key, std::move(copy), condition));
  xml::Writer xml("CopyObjectResult");
  xml.Text("LastModified", FormatIso8601(stored->modified)).Text("ETag", Quote(stored->etag));
  if (stored->checksum) {
    xml.Text(ChecksumElement(stored->checksum->kind), stored->checksum->value);
    xml.Text("ChecksumType", ChecksumTypeName(stored->checksum->type));
  }
  return context.SendXml(xml.Finish());
}

Reply<void> DeleteObject(OperationContext& context) {
  WriteCondition condition = MR_TRY(context.Condition());
  MR_TRY(context.storage.Delete(context.bucket, {&context.key, 1}, condition));
  return context.SendEmpty(204);
}

Reply<void> DeleteObjects(OperationContext& context) {
  Payload payload = MR_TRY(Payload::Open(context.request, context.who, kMaxDeleteDocument));
  DeleteRequest request = MR_TRY(ParseDeleteRequest(MR_TRY(ReadDocument(payload))));
  MR_TRY(context.storage.HeadBucket(context.bucket));
  xml::Writer xml("DeleteResult");
  auto deleted = [&](const std::string& key) {
    if (!request.quiet) xml.Open("Deleted").Text("Key", key).Close("Deleted");
  };
  std::vector<std::string> unconditional;
  for (DeleteRequest::Item& item : request.items) {
    Reply<void> done;
    if (!item.version_id.empty() && item.version_id != "null") {
      done = Refuse("NoSuchVersion", "The specified version does not exist.");
    } else if (auto allowed = context.policy ? context.policy->CheckDelete(context.bucket, item.key) : Reply<void>();
               !allowed) {
      done = std::move(allowed);
    } else if (item.etag.empty()) {
      unconditional.push_back(std::move(item.key));
      continue;
    } else {
      done = context.storage.Delete(context.bucket, {&item.key, 1}, {.if_match = item.etag});
    }
    if (done) {
      deleted(item.key);
    } else {
      xml.Open("Error").Text("Key", item.key).Text("Code", done.error().code);
      xml.Text("Message", done.error().message).Close("Error");
    }
  }
  MR_TRY(context.storage.Delete(context.bucket, unconditional, {}));
  for (const std::string& key : unconditional) deleted(key);
  return context.SendXml(xml.Finish());
}

}  // namespace millrace::s3d
