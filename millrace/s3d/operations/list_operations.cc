#include "millrace/base/hash/text_encoding.h"
#include "millrace/base/text.h"
#include "millrace/s3d/operations/operation_context.h"
#include "millrace/xml/xml.h"

namespace millrace::s3d {
namespace {

/// Writes names into an answer: as they are, or percent-encoded if the request has encoding-type=url.
class Naming {
 public:
  static Reply<Naming> Of(const OperationContext& context) {
    std::string_view type = context.Parameter("encoding-type");
    if (!type.empty() && type != "url")
      return Refuse("InvalidArgument", "Invalid Encoding Method specified in Request");
    return Naming(!type.empty());
  }
  bool encodes() const { return encodes_; }
  std::string operator()(std::string_view name) const {
    return encodes_ ? PercentEncode(name, true) : std::string(name);
  }

 private:
  explicit Naming(bool encodes) : encodes_(encodes) {}
  bool encodes_;
};

void WriteEntries(xml::Writer& xml, const Listing& listing, const Naming& naming, bool owner) {
  for (const auto& [name, object] : listing.entries) {
    if (!object) continue;
    xml.Open("Contents").Text("Key", naming(name)).Text("LastModified", FormatIso8601(object->modified));
    xml.Text("ETag", Quote(object->etag)).Number("Size", object->size);
    if (object->checksum) {
      xml.Text("ChecksumAlgorithm", ChecksumName(object->checksum->kind));
      xml.Text("ChecksumType", ChecksumTypeName(object->checksum->type));
    }
    if (owner) xml.Open("Owner").Text("ID", "millrace").Text("DisplayName", "millrace").Close("Owner");
    xml.Text("StorageClass", "STANDARD").Close("Contents");
  }
  for (const auto& [name, object] : listing.entries) {
    if (!object) xml.Open("CommonPrefixes").Text("Prefix", naming(name)).Close("CommonPrefixes");
  }
}

Reply<ListQuery> QueryOf(const OperationContext& context) {
  ListQuery query;
  query.prefix = context.Parameter("prefix");
  query.delimiter = context.Parameter("delimiter");
  query.max_keys =
      static_cast<int>(std::min<std::uint64_t>(1000, MR_TRY(context.Number("max-keys", 1000, 0, INT32_MAX))));
  return query;
}

void WriteQuery(xml::Writer& xml, const OperationContext& context, const ListQuery& query, const Naming& naming) {
  xml.Text("Name", context.bucket).Text("Prefix", naming(query.prefix));
  if (!query.delimiter.empty()) xml.Text("Delimiter", naming(query.delimiter));
  xml.Number("MaxKeys", query.max_keys);
  if (naming.encodes()) xml.Text("EncodingType", "url");
}

}  // namespace

Reply<void> ListObjects(OperationContext& context) {
  Naming naming = MR_TRY(Naming::Of(context));
  ListQuery query = MR_TRY(QueryOf(context));
  query.after = context.Parameter("marker");
  Listing listing = MR_TRY(context.storage.List(context.bucket, query));
  xml::Writer xml("ListBucketResult");
  WriteQuery(xml, context, query, naming);
  xml.Text("Marker", naming(query.after)).Bool("IsTruncated", listing.truncated);
  if (listing.truncated) xml.Text("NextMarker", naming(listing.entries.back().name));
  WriteEntries(xml, listing, naming, true);
  return context.SendXml(xml.Finish());
}

Reply<void> ListObjectsV2(OperationContext& context) {
  Naming naming = MR_TRY(Naming::Of(context));
  ListQuery query = MR_TRY(QueryOf(context));
  query.after = context.Parameter("start-after");
  std::string_view token = context.Parameter("continuation-token");
  if (context.Asks("continuation-token")) {
    auto after = Base64Decode(token);
    if (!after || after->empty()) return Refuse("InvalidArgument", "The continuation token provided is incorrect");
    query.after = AsText(*after);
  }
  Listing listing = MR_TRY(context.storage.List(context.bucket, query));
  xml::Writer xml("ListBucketResult");
  WriteQuery(xml, context, query, naming);
  if (context.Asks("start-after")) xml.Text("StartAfter", naming(context.Parameter("start-after")));
  if (!token.empty()) xml.Text("ContinuationToken", token);
  xml.Number("KeyCount", listing.entries.size()).Bool("IsTruncated", listing.truncated);
  if (listing.truncated) xml.Text("NextContinuationToken", Base64Encode(AsBytes(listing.entries.back().name)));
  WriteEntries(xml, listing, naming, context.Parameter("fetch-owner") == "true");
  return context.SendXml(xml.Finish());
}

/// Each object is its only version.
Reply<void> ListObjectVersions(OperationContext& context) {
  Naming naming = MR_TRY(Naming::Of(context));
  ListQuery query = MR_TRY(QueryOf(context));
  query.after = context.Parameter("key-marker");
  if (context.Asks("version-id-marker") && query.after.empty()) {
    return Refuse("InvalidArgument", "A version-id marker cannot be specified without a key marker.");
  }
  Listing listing = MR_TRY(context.storage.List(context.bucket, query));
  xml::Writer xml("ListVersionsResult");
  WriteQuery(xml, context, query, naming);
  xml.Text("KeyMarker", naming(query.after)).Text("VersionIdMarker", context.Parameter("version-id-marker"));
  xml.Bool("IsTruncated", listing.truncated);
  if (listing.truncated) {
    xml.Text("NextKeyMarker", naming(listing.entries.back().name)).Text("NextVersionIdMarker", "null");
  }
  for (const auto& [name, object] : listing.entries) {
    if (!object) continue;
    xml.Open("Version").Text("Key", naming(name)).Text("VersionId", "null").Bool("IsLatest", true);
    xml.Text("LastModified", FormatIso8601(object->modified)).Text("ETag", Quote(object->etag));
    xml.Number("Size", object->size).Text("StorageClass", "STANDARD");
    xml.Open("Owner").Text("ID", "millrace").Text("DisplayName", "millrace").Close("Owner").Close("Version");
  }
  for (const auto& [name, object] : listing.entries) {
    if (!object) xml.Open("CommonPrefixes").Text("Prefix", naming(name)).Close("CommonPrefixes");
  }
  return context.SendXml(xml.Finish());
}

Reply<void> ListMultipartUploads(OperationContext& context) {
  Naming naming = MR_TRY(Naming::Of(context));
  if (!context.Parameter("delimiter").empty()) {
    return Refuse("NotImplemented", "Uploads are listed without a delimiter here");
  }
  UploadQuery query;
  query.prefix = context.Parameter("prefix");
  query.key_marker = context.Parameter("key-marker");
  query.upload_id_marker = context.Parameter("upload-id-marker");
  query.max_uploads =
      static_cast<int>(std::min<std::uint64_t>(1000, MR_TRY(context.Number("max-uploads", 1000, 1, INT32_MAX))));
  UploadListing listing = MR_TRY(context.storage.ListUploads(context.bucket, query));
  xml::Writer xml("ListMultipartUploadsResult");
  xml.Text("Bucket", context.bucket).Text("KeyMarker", naming(query.key_marker));
  xml.Text("UploadIdMarker", query.upload_id_marker).Text("Prefix", naming(query.prefix));
  if (listing.truncated) {
    xml.Text("NextKeyMarker", naming(listing.entries.back().key));
    xml.Text("NextUploadIdMarker", listing.entries.back().upload_id);
  }
  xml.Number("MaxUploads", query.max_uploads).Bool("IsTruncated", listing.truncated);
  if (naming.encodes()) xml.Text("EncodingType", "url");
  for (const auto& entry : listing.entries) {
    xml.Open("Upload").Text("Key", naming(entry.key)).Text("UploadId", entry.upload_id);
    xml.Text("StorageClass", "STANDARD").Text("Initiated", FormatIso8601(entry.initiated)).Close("Upload");
  }
  return context.SendXml(xml.Finish());
}

Reply<void> ListParts(OperationContext& context) {
  std::string_view id = context.Parameter("uploadId");
  auto marker = static_cast<int>(MR_TRY(context.Number("part-number-marker", 0, 0, INT32_MAX)));
  std::size_t most = std::min<std::uint64_t>(1000, MR_TRY(context.Number("max-parts", 1000, 1, INT32_MAX)));
  Upload upload = MR_TRY(context.storage.GetUpload(context.bucket, context.key, id));
  xml::Writer xml("ListPartsResult");
  xml.Text("Bucket", context.bucket).Text("Key", context.key).Text("UploadId", id);
  xml.Text("StorageClass", "STANDARD").Number("PartNumberMarker", marker).Number("MaxParts", most);
  if (upload.checksum_kind) {
    xml.Text("ChecksumAlgorithm", ChecksumName(*upload.checksum_kind));
    xml.Text("ChecksumType", ChecksumTypeName(upload.checksum_type));
  }
  auto at = upload.parts.upper_bound(marker);
  int last = marker;
  for (std::size_t shown = 0; at != upload.parts.end() && shown < most; ++at, ++shown) {
    const auto& [number, part] = *at;
    xml.Open("Part").Number("PartNumber", number).Text("LastModified", FormatIso8601(part.modified));
    xml.Text("ETag", Quote(part.etag)).Number("Size", part.size);
    if (upload.checksum_kind && !part.checksum.empty()) xml.Text(ChecksumElement(*upload.checksum_kind), part.checksum);
    xml.Close("Part");
    last = number;
  }
  bool truncated = at != upload.parts.end();
  xml.Bool("IsTruncated", truncated);
  if (truncated) xml.Number("NextPartNumberMarker", last);
  return context.SendXml(xml.Finish());
}

}  // namespace millrace::s3d
