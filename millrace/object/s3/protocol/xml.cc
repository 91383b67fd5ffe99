#include "millrace/object/s3/protocol/xml.h"

#include <algorithm>
#include <charconv>

#include "millrace/base/text.h"
#include "millrace/xml/document.h"
#include "millrace/xml/xml.h"

namespace millrace::object::s3 {
namespace {

/// Parses an answer whose root has one of these names, or another that `marks` is a child of: servers differ in the
/// names of roots, but not of their children.
Result<xml::Document> Parse(std::string_view body, std::initializer_list<std::string_view> roots,
                            const char* marks = nullptr) {
  auto document = xml::Document::Parse(body);
  if (!document) return Fail(document.error().Context("reading the answer"));
  std::string_view name = document->root().name();
  for (std::string_view root : roots) {
    if (name == root) return document;
  }
  if (marks && name != "Error" && document->root().child(marks)) return document;
  return Fail(Code::kCorrupt, "the answer is a <{}> where <{}> belongs; check that the endpoint's URL names no bucket",
              name.substr(0, 64), *roots.begin());
}

std::string_view Text(pugi::xml_node parent, const char* child) { return parent.child_value(child); }

template <class T>
Result<T> Number(pugi::xml_node parent, const char* child) {
  std::string_view text = Trim(Text(parent, child));
  T value{};
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) {
    return Fail(Code::kCorrupt, "<{}> in the answer is {:?}, not a number", child, text.substr(0, 40));
  }
  return value;
}

Result<WallTime> Time(pugi::xml_node parent, const char* child) {
  auto time = ParseIso8601(Text(parent, child));
  if (!time) return Fail(time.error().WithCode(Code::kCorrupt).Context(fmt::format("reading <{}>", child)));
  return *time;
}

/// Decodes a name if the response says that encoding-type=url applies.
class Names {
 public:
  explicit Names(pugi::xml_node root) : encoded_(Text(root, "EncodingType") == "url") {}
  /// A name that cannot be decoded is taken as it is: some servers say that they encode, and do not.
  std::string Read(pugi::xml_node parent, const char* child) const {
    const std::string_view text = Text(parent, child);
    auto decoded = encoded_ ? PercentDecode(text, /*plus_is_space=*/true) : std::string(text);
    return decoded ? *std::move(decoded) : std::string(text);
  }

 private:
  const bool encoded_;
};

/// Returns the continuation of a page of a server that has only the first version of listings.
Result<std::string> MarkerAfter(pugi::xml_node root, const Names& names, const ListPage& page) {
  std::string marker = names.Read(root, "NextMarker");
  for (const ObjectInfo& object : page.objects) marker = std::max(marker, object.key);
  for (const std::string& prefix : page.common_prefixes) marker = std::max(marker, prefix);
  if (!marker.empty()) return std::string(kMarkerToken) + marker;
  return Fail(Code::kCorrupt, "a truncated listing has neither a continuation token nor a name");
}

}  // namespace

ErrorDocument ParseErrorDocument(std::string_view body) {
  auto document = Parse(body, {"Error", "ErrorResponse"});
  if (!document) return {};
  pugi::xml_node root = document->root();
  pugi::xml_node error = std::string_view(root.name()) == "ErrorResponse" ? root.child("Error") : root;
  return {.code = std::string(Text(error, "Code")),
          .message = std::string(Text(error, "Message")),
          .request_id = std::string(Text(root, "RequestId")),
          .region = std::string(Text(error, "Region"))};
}

bool IsErrorDocument(std::string_view body) { return Parse(body, {"Error"}).has_value(); }

Result<ListPage> ParseListPage(std::string_view body) {
  xml::Document document = MR_TRY(Parse(body, {"ListBucketResult"}));
  Names names(document.root());
  ListPage page;
  for (pugi::xml_node child : document.root().children("Contents")) {
    ObjectInfo& info = page.objects.emplace_back();
    info.key = names.Read(child, "Key");
    // S3Proxy gives the markers of folders no size.
    if (!info.key.ends_with('/') || !Trim(Text(child, "Size")).empty())
      info.size = MR_TRY(Number<std::uint64_t>(child, "Size"));
    info.etag = xml::Unquote(Text(child, "ETag"));
    info.modified = MR_TRY(Time(child, "LastModified"));
  }
  for (pugi::xml_node child : document.root().children("CommonPrefixes")) {
    page.common_prefixes.push_back(names.Read(child, "Prefix"));
  }
  if (Text(document.root(), "IsTruncated") == "true") {
    page.continuation = Text(document.root(), "NextContinuationToken");
    if (page.continuation.empty()) page.continuation = MR_TRY(MarkerAfter(document.root(), names, page));
  }
  return page;
}

std::string PeekContinuation(std::string_view body) {
  // This text is markup: inside a name it would be escaped.
  constexpr std::string_view kBegin = "<NextContinuationToken>", kMore = "<IsTruncated>true</IsTruncated>";
  const std::size_t at = body.find(kBegin);
  if (at == body.npos || body.find(kMore) == body.npos) return {};
  const std::string_view token = body.substr(at + kBegin.size());
  const std::size_t end = token.find_first_of("<&\r");
  return std::string(end != token.npos && token[end] == '<' ? token.substr(0, end) : "");
}

Result<VersionsPage> ParseVersionsPage(std::string_view body) {
  xml::Document document = MR_TRY(Parse(body, {"ListVersionsResult"}));
  Names names(document.root());
  VersionsPage page;
  for (pugi::xml_node child : document.root().children()) {
    const std::string_view name = child.name();
    if (name == "CommonPrefixes") page.common_prefixes.push_back(names.Read(child, "Prefix"));
    if (name != "Version" && name != "DeleteMarker") continue;
    VersionInfo& version = page.versions.emplace_back();
    version.deletion = name == "DeleteMarker";
    version.id = Text(child, "VersionId");
    version.latest = Text(child, "IsLatest") == "true";
    version.info.key = names.Read(child, "Key");
    version.info.modified = MR_TRY(Time(child, "LastModified"));
    if (version.deletion) continue;
    version.info.size = MR_TRY(Number<std::uint64_t>(child, "Size"));
    version.info.etag = xml::Unquote(Text(child, "ETag"));
  }
  if (Text(document.root(), "IsTruncated") == "true") {
    page.next_key = names.Read(document.root(), "NextKeyMarker");
    page.next_version = Text(document.root(), "NextVersionIdMarker");
    if (page.next_key.empty()) return Fail(Code::kCorrupt, "a truncated list of versions has no marker");
  }
  return page;
}

Result<std::string> ParseUploadId(std::string_view body) {
  xml::Document document = MR_TRY(Parse(body, {"InitiateMultipartUploadResult"}, "UploadId"));
  std::string id(Text(document.root(), "UploadId"));
  if (id.empty()) return Fail(Code::kCorrupt, "the answer names no upload id");
  return id;
}

Result<WrittenDocument> ParseWritten(std::string_view body) {
  xml::Document document =
      MR_TRY(Parse(body, {"CopyObjectResult", "CopyPartResult", "CompleteMultipartUploadResult"}, "ETag"));
  return WrittenDocument{.etag = xml::Unquote(Text(document.root(), "ETag")),
                         .checksum_crc32c = std::string(Text(document.root(), "ChecksumCRC32C"))};
}

Result<Query> ParseTags(std::string_view body) {
  xml::Document document = MR_TRY(Parse(body, {"Tagging"}));
  Query tags;
  for (pugi::xml_node tag : document.root().child("TagSet").children("Tag"))
    tags.emplace_back(Text(tag, "Key"), Text(tag, "Value"));
  return tags;
}

Result<PartsPage> ParsePartsPage(std::string_view body) {
  xml::Document document = MR_TRY(Parse(body, {"ListPartsResult"}, "UploadId"));
  PartsPage page;
  for (pugi::xml_node child : document.root().children("Part")) {
    PartInfo& part = page.parts.emplace_back();
    part.number = MR_TRY(Number<int>(child, "PartNumber"));
    part.size = MR_TRY(Number<std::uint64_t>(child, "Size"));
    part.etag = xml::Unquote(Text(child, "ETag"));
    part.checksum = Text(child, "ChecksumCRC32C");
  }
  if (Text(document.root(), "IsTruncated") == "true") {
    page.next_marker = Text(document.root(), "NextPartNumberMarker");
    if (page.next_marker.empty()) return Fail(Code::kCorrupt, "a truncated list of parts has no marker");
  }
  return page;
}

Result<UploadsPage> ParseUploadsPage(std::string_view body) {
  xml::Document document = MR_TRY(Parse(body, {"ListMultipartUploadsResult"}));
  Names names(document.root());
  UploadsPage page;
  for (pugi::xml_node child : document.root().children("Upload")) {
    UploadInfo& upload = page.uploads.emplace_back();
    upload.key = names.Read(child, "Key");
    upload.upload_id = Text(child, "UploadId");
    upload.initiated = MR_TRY(Time(child, "Initiated"));
  }
  if (Text(document.root(), "IsTruncated") == "true") {
    page.next_key = names.Read(document.root(), "NextKeyMarker");
    page.next_upload_id = Text(document.root(), "NextUploadIdMarker");
    if (page.next_key.empty()) return Fail(Code::kCorrupt, "a truncated list of uploads has no marker");
  }
  return page;
}

Result<std::vector<Service::Bucket>> ParseBuckets(std::string_view body) {
  xml::Document document = MR_TRY(Parse(body, {"ListAllMyBucketsResult"}));
  std::vector<Service::Bucket> buckets;
  for (pugi::xml_node child : document.root().child("Buckets").children("Bucket")) {
    const WallTime created = MR_TRY(Time(child, "CreationDate"));
    buckets.push_back({.name = std::string(Text(child, "Name")), .created = created});
  }
  return buckets;
}

Result<std::vector<DeleteError>> ParseDeleteErrors(std::string_view body) {
  xml::Document document = MR_TRY(Parse(body, {"DeleteResult"}));
  std::vector<DeleteError> errors;
  for (pugi::xml_node child : document.root().children("Error")) {
    errors.push_back({.key = std::string(Text(child, "Key")),
                      .version = std::string(Text(child, "VersionId")),
                      .code = std::string(Text(child, "Code")),
                      .message = std::string(Text(child, "Message"))});
  }
  return errors;
}

Result<RoleCredentials> ParseRoleCredentials(std::string_view body) {
  xml::Document document = MR_TRY(Parse(body, {"AssumeRoleResponse", "AssumeRoleWithWebIdentityResponse"}));
  pugi::xml_node found;
  for (pugi::xml_node result : document.root().children()) {
    if (pugi::xml_node child = result.child("Credentials")) found = child;
  }
  RoleCredentials role{.access_key = std::string(Text(found, "AccessKeyId")),
                       .secret_key = std::string(Text(found, "SecretAccessKey")),
                       .session_token = std::string(Text(found, "SessionToken")),
                       .expiration = std::string(Text(found, "Expiration"))};
  if (role.access_key.empty() || role.secret_key.empty()) {
    return Fail(Code::kCorrupt, "the answer of the token service holds no credentials");
  }
  return role;
}

std::string DeleteDocument(std::span<const VersionName> names) {
  xml::Writer xml("Delete");
  xml.Bool("Quiet", true);
  for (const VersionName& name : names) {
    xml.Open("Object").Text("Key", name.key);
    if (!name.id.empty()) xml.Text("VersionId", name.id);
    xml.Close("Object");
  }
  return xml.Finish();
}

std::string CompleteDocument(const std::vector<PartInfo>& parts) {
  xml::Writer xml("CompleteMultipartUpload");
  for (const PartInfo& part : parts) {
    xml.Open("Part").Number("PartNumber", static_cast<std::uint64_t>(part.number));
    xml.Text("ETag", fmt::format("\"{}\"", part.etag));
    if (!part.checksum.empty()) xml.Text("ChecksumCRC32C", part.checksum);
    xml.Close("Part");
  }
  return xml.Finish();
}

std::string RestoreDocument(const RestoreOptions& options) {
  xml::Writer xml("RestoreRequest");
  xml.Number("Days", static_cast<std::uint64_t>(options.days));
  if (!options.tier.empty()) {
    xml.Open("GlacierJobParameters").Text("Tier", options.tier).Close("GlacierJobParameters");
  }
  return xml.Finish();
}

std::string BucketDocument(std::string_view region) {
  return xml::Writer("CreateBucketConfiguration").Text("LocationConstraint", region).Finish();
}

}  // namespace millrace::object::s3
