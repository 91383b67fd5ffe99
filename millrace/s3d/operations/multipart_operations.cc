#include <algorithm>

#include "millrace/base/hash/digest.h"
#include "millrace/base/hash/text_encoding.h"
#include "millrace/base/text.h"
#include "millrace/s3d/operations/conditions.h"
#include "millrace/s3d/operations/documents.h"
#include "millrace/s3d/operations/operation_context.h"
#include "millrace/s3d/operations/receive.h"
#include "millrace/s3d/protocol/payload.h"
#include "millrace/xml/xml.h"

namespace millrace::s3d {
namespace {

constexpr int kMaxPartNumber = 10'000;                    // S3's limit
constexpr std::uint64_t kMaxCompleteDocument = 8 * kMiB;  // 10,000 parts with all their checksums
constexpr std::uint64_t kMaxObject = 5 * 1024 * kGiB;     // 5 TiB: 10,000 parts of 512 MiB
/// The most extents of an object. Each is three numbers of at most 10 bytes, so they fit in a journal record (64 MiB).
constexpr std::size_t kMaxExtents = 2'000'000;

Reply<int> PartNumberOf(const OperationContext& context) {
  auto number = context.Number("partNumber", 0, 1, kMaxPartNumber);
  if (!number) return Refuse("InvalidArgument", "Part number must be an integer between 1 and 10000, inclusive.");
  return static_cast<int>(*number);
}

Reply<void> ReadChecksumChoice(const OperationContext& context, Upload& upload) {
  std::string_view name = context.Header("x-amz-checksum-algorithm");
  if (name.empty()) return {};
  upload.checksum_kind = ParseChecksumName(name);
  if (!upload.checksum_kind) return Refuse("InvalidRequest", "Checksum algorithm provided is unsupported");
  bool is_sha = *upload.checksum_kind == ChecksumKind::kSha1 || *upload.checksum_kind == ChecksumKind::kSha256;
  bool is_crc64 = *upload.checksum_kind == ChecksumKind::kCrc64Nvme;
  std::string_view type = context.Header("x-amz-checksum-type");
  upload.checksum_type =
      type == "FULL_OBJECT" || (type.empty() && is_crc64) ? ChecksumType::kFullObject : ChecksumType::kComposite;
  bool known = type.empty() || type == "FULL_OBJECT" || type == "COMPOSITE";
  bool possible = upload.checksum_type == ChecksumType::kFullObject ? !is_sha : !is_crc64;
  if (!known || !possible) {
    return Refuse("InvalidRequest", fmt::format("The {} checksum type cannot be used with the {} checksum algorithm.",
                                                type, ChecksumName(*upload.checksum_kind)));
  }
  return {};
}

/// Returns the uploaded part that a completion names, if ETag and checksum match.
Reply<const StoredPart*> MatchPart(const Upload& upload, const CompletedPart& wanted) {
  auto found = upload.parts.find(wanted.number);
  if (found == upload.parts.end() || found->second.etag != wanted.etag) {
    return Refuse("InvalidPart",
                  "One or more of the specified parts could not be found.  The part may not have been uploaded, or the "
                  "specified entity tag may not match the part's entity tag.");
  }
  // A composite checksum proves something only if the client gives the checksum of each part.
  if (upload.checksum_kind && upload.checksum_type == ChecksumType::kComposite &&
      std::ranges::none_of(wanted.checksums, [&](const auto& given) { return given.kind == *upload.checksum_kind; })) {
    return Refuse("InvalidRequest",
                  fmt::format("The upload was created using a {} checksum. The complete request must include the "
                              "checksum for each part. It was missing for part {} in the request.",
                              ToLower(ChecksumName(*upload.checksum_kind)), wanted.number));
  }
  for (const auto& [kind, value] : wanted.checksums) {
    if (upload.checksum_kind == kind && value != found->second.checksum) {
      return Refuse("InvalidPart", fmt::format("The checksum of part {} does not match.", wanted.number));
    }
  }
  return &found->second;
}

Reply<Object> Assemble(const OperationContext& context, const std::vector<CompletedPart>& wanted,
                       const Upload& upload) {
  Object object;
  Hasher etags(Hasher::Algorithm::kMd5);
  std::vector<PartChecksum> checksums;
  if (std::ranges::adjacent_find(wanted, std::ranges::greater_equal(), &CompletedPart::number) != wanted.end()) {
    return Refuse("InvalidPartOrder",
                  "The list of parts was not in ascending order. Parts must be ordered by part number.");
  }
  for (const CompletedPart& entry : wanted) {
    const StoredPart* part = MR_TRY(MatchPart(upload, entry));
    if (&entry != &wanted.back() && part->size < context.min_part_bytes) {
      return Refuse("EntityTooSmall", "Your proposed upload is smaller than the minimum allowed size");
    }
    auto digest = HexDecode(part->etag);
    if (!digest) return Refuse("InternalError", "a part has no digest");
    etags.Update(*digest);
    checksums.push_back({part->checksum, part->size});
    object.size += part->size;
    object.part_sizes.push_back(part->size);
    object.extents.insert(object.extents.end(), part->extents.begin(), part->extents.end());
    if (object.extents.size() > kMaxExtents) {
      return Refuse("InvalidRequest", "Parts that were copied from objects of many parts make too many pieces.");
    }
  }
  if (object.size > kMaxObject)
    return Refuse("EntityTooLarge", "Your proposed upload exceeds the maximum allowed object size.");
  object.etag = fmt::format("{}-{}", HexEncode(etags.Finish()), wanted.size());
  object.attributes = upload.attributes;
  object.modified = context.storage.Now();
  if (upload.checksum_kind) {
    auto combined = CombineChecksums(*upload.checksum_kind, upload.checksum_type, checksums);
    if (!combined) return Refuse("InvalidPart", combined.error().ToString());
    object.checksum = std::move(*combined);
  }
  return object;
}

/// Checks the completed object against the size and checksum in the request.
Reply<void> CheckPromises(const OperationContext& context, const Object& object) {
  std::uint64_t size = object.size;
  if (std::string_view told = context.Header("x-amz-mp-object-size"); !told.empty() && told != std::to_string(size)) {
    return Refuse("InvalidRequest",
                  fmt::format("The provided x-amz-mp-object-size does not match what was uploaded: {}", size));
  }
  for (ChecksumKind kind : kChecksumKinds) {
    std::string_view told = context.Header(ChecksumHeader(kind));
    if (told.empty()) continue;
    if (!object.checksum || object.checksum->kind != kind || object.checksum->value != told) {
      return Refuse("BadDigest",
                    fmt::format("The {} you specified did not match the calculated checksum.", ChecksumName(kind)));
    }
  }
  return {};
}

}  // namespace

Reply<void> CreateMultipartUpload(OperationContext& context) {
  Upload upload;
  upload.attributes = MR_TRY(StoredAttributes(context.request.headers()));
  upload.initiated = context.storage.Now();
  MR_TRY(ReadChecksumChoice(context, upload));
  auto kind = upload.checksum_kind;
  auto type = upload.checksum_type;
  std::string id = MR_TRY(context.storage.CreateUpload(context.bucket, context.key, std::move(upload)));
  http::Headers headers = context.CommonHeaders();
  if (kind) {
    headers.Set("x-amz-checksum-algorithm", std::string(ChecksumName(*kind)));
    headers.Set("x-amz-checksum-type", std::string(ChecksumTypeName(type)));
  }
  xml::Writer xml("InitiateMultipartUploadResult");
  xml.Text("Bucket", context.bucket).Text("Key", context.key).Text("UploadId", id);
  return context.SendXml(xml.Finish(), std::move(headers));
}

Reply<void> UploadPart(OperationContext& context) {
  std::string_view id = context.Parameter("uploadId");
  int number = MR_TRY(PartNumberOf(context));
  Upload upload = MR_TRY(context.storage.GetUpload(context.bucket, context.key, id));
  Payload payload = MR_TRY(Payload::Open(context.request, context.who, kMaxPut, upload.checksum_kind));
  StoredPart part;
  part.extents = MR_TRY(ReceiveBody(payload, context.storage.blobs(), part.size));
  part.etag = HexEncode(payload.md5());
  part.modified = context.storage.Now();
  const auto& checksum = payload.checksum();
  if (checksum && upload.checksum_kind) {
    if (checksum->kind != *upload.checksum_kind) {
      return Refuse("InvalidRequest",
                    fmt::format("Checksum Type mismatch occurred, expected checksum Type: {}, actual: {}",
                                ChecksumName(*upload.checksum_kind), ChecksumName(checksum->kind)));
    }
    part.checksum = checksum->value;
  }
  http::Headers headers = context.CommonHeaders();
  headers.Set("ETag", Quote(part.etag));
  if (checksum) headers.Set(ChecksumHeader(checksum->kind), checksum->value);
  MR_TRY(context.storage.PutPart(context.bucket, context.key, id, number, std::move(part)));
  return context.SendEmpty(200, std::move(headers));
}

Reply<void> UploadPartCopy(OperationContext& context) {
  std::string_view id = context.Parameter("uploadId");
  int number = MR_TRY(PartNumberOf(context));
  Upload upload = MR_TRY(context.storage.GetUpload(context.bucket, context.key, id));
  ObjectPtr source = MR_TRY(CopySource(context));
  BodyRange span{0, source->size};
  if (std::string_view range = context.Header("x-amz-copy-source-range"); !range.empty()) {
    auto parsed = ParseRange(range, source->size);
    std::size_t dash = range.find('-');
    if (!parsed || !*parsed || dash + 1 == range.size() || range.find("=-") != std::string_view::npos) {
      return Refuse("InvalidArgument", "The x-amz-copy-source-range value must be of the form bytes=first-last");
    }
    span = **parsed;
    if (range.substr(dash + 1) != std::to_string(span.offset + span.length - 1)) {
      return Refuse("InvalidRequest", "Range specified is not valid for source object");
    }
  }
  if (span.length > kMaxPut) return Refuse("EntityTooLarge", "A part can have 5 GiB");

  StoredPart part;
  part.size = span.length;
  part.extents = Slice(source->extents, span.offset, span.length);
  MR_TRY(DigestPart(upload.checksum_kind, part));
  part.modified = context.storage.Now();
  xml::Writer xml("CopyPartResult");
  xml.Text("LastModified", FormatIso8601(part.modified)).Text("ETag", Quote(part.etag));
  if (upload.checksum_kind) xml.Text(ChecksumElement(*upload.checksum_kind), part.checksum);
  MR_TRY(context.storage.PutPart(context.bucket, context.key, id, number, std::move(part)));
  return context.SendXml(xml.Finish());
}

Reply<void> CompleteMultipartUpload(OperationContext& context) {
  WriteCondition condition = MR_TRY(context.Condition());
  // The checksum headers of this request belong to the object, not to the request's body.
  std::string document = MR_TRY(context.request.ReadAllBody(kMaxCompleteDocument));
  if (context.who.content_sha256.size() == 64 && HexEncode(Sha256(AsBytes(document))) != context.who.content_sha256) {
    return Refuse("XAmzContentSHA256Mismatch",
                  "The provided 'x-amz-content-sha256' header does not match what was computed.");
  }
  std::vector<CompletedPart> wanted = MR_TRY(ParseCompleteRequest(document));
  auto assemble = [&](const Upload& upload) -> Reply<Object> {
    Object object = MR_TRY(Assemble(context, wanted, upload));
    MR_TRY(CheckPromises(context, object));
    return object;
  };
  ObjectPtr object = MR_TRY(
      context.storage.CompleteUpload(context.bucket, context.key, context.Parameter("uploadId"), condition, assemble));
  xml::Writer xml("CompleteMultipartUploadResult");
  xml.Text("Location",
           fmt::format("http://{}/{}/{}", context.Header("Host"), context.bucket, PercentEncode(context.key, true)));
  xml.Text("Bucket", context.bucket).Text("Key", context.key).Text("ETag", Quote(object->etag));
  if (object->checksum) {
    xml.Text(ChecksumElement(object->checksum->kind), object->checksum->value);
    xml.Text("ChecksumType", ChecksumTypeName(object->checksum->type));
  }
  return context.SendXml(xml.Finish());
}

Reply<void> AbortMultipartUpload(OperationContext& context) {
  MR_TRY(context.storage.AbortUpload(context.bucket, context.key, context.Parameter("uploadId")));
  return context.SendEmpty(204);
}

}  // namespace millrace::s3d
