#include "apps/millrace/objects/object_options.h"

#include <map>

#include "apps/common/flag_checks.h"
#include "millrace/base/files/content_types.h"
#include "millrace/base/text.h"

namespace millrace::cli {
namespace {

/// The part before the first '=' in lower case, and the part behind it.
std::map<std::string, std::string> Pairs(const std::vector<std::string>& metadata) {
  std::map<std::string, std::string> pairs;
  for (const std::string& pair : metadata) {
    std::size_t equals = pair.find('=');
    pairs[ToLower(pair.substr(0, equals))] = pair.substr(equals + 1);
  }
  return pairs;
}

/// Checks tags in the form of a query: "name=value&name=value".
Status CheckTags(std::string_view tags) {
  constexpr std::size_t kMostTags = 10, kMostName = 128, kMostValue = 256;  // characters; limits of S3
  if (tags.empty()) return {};
  const std::vector<std::string_view> all = Split(tags, '&');
  if (all.size() > kMostTags)
    return Fail(Code::kInvalidArgument, "--tagging: an object has at most {} tags", kMostTags);
  for (std::string_view tag : all) {
    const std::size_t equals = tag.find('=');
    const auto name = PercentDecode(tag.substr(0, equals), /*plus_is_space=*/true);
    const auto value =
        PercentDecode(equals == tag.npos ? std::string_view() : tag.substr(equals + 1), /*plus_is_space=*/true);
    if (equals == tag.npos || !name || name->empty() || !value || name->size() > 4 * kMostName ||
        value->size() > 4 * kMostValue) {
      return Fail(Code::kInvalidArgument, "--tagging {}: expected name=value, further ones after &, and %2B for +",
                  tag);
    }
  }
  return {};
}

template <class Into>
void AddSize(CLI::App& command, const std::string& name, Into& into, const std::string& description) {
  command.add_option_function<std::string>(
      name,
      [name, &into](const std::string& text) {
        auto parsed = ParseBytes(text);
        if (!parsed || *parsed == 0) throw CLI::ValidationError(name + ": " + text + " is not a size such as 16MiB");
        into = *parsed;
      },
      description);
}

}  // namespace

void AddSizeFlag(CLI::App& command, const std::string& name, std::uint64_t& into, const std::string& description) {
  AddSize(command, name, into, description);
}

void AddSizeFlag(CLI::App& command, const std::string& name, std::optional<std::uint64_t>& into,
                 const std::string& description) {
  AddSize(command, name, into, description);
}

void WriteFlags::AddTo(CLI::App& command) {
  AddSizeFlag(command, "--part-size", part_bytes,
              "Size of the parts of large objects (default: 8MiB, up to 64MiB for large downloads)");
  command.add_option("--content-type", content_type,
                     "Content type of the objects (default: from the name's extension)");
  command.add_option("--metadata", metadata, "name=value to store with the objects (repeatable)")
      ->allow_extra_args(false);
  command.add_option("--storage-class", attributes.storage_class,
                     "Storage class: STANDARD_IA, GLACIER_IR, ... (default: the bucket's)");
  command.add_option("--acl", attributes.acl, "Canned ACL: private, public-read, bucket-owner-full-control, ...");
  command.add_option("--sse", attributes.encryption, "Encryption by the server")
      ->check(OneOf({"AES256", "aws:kms", "aws:kms:dsse"}));
  command.add_option("--sse-kms-key-id", attributes.kms_key, "ID of the KMS key (implies --sse aws:kms)");
  command.add_option("--cache-control", attributes.cache_control, "Cache-Control of the objects");
  command.add_option("--content-encoding", attributes.content_encoding, "Content-Encoding of the objects");
  command.add_option("--content-disposition", attributes.content_disposition, "Content-Disposition of the objects");
  command.add_option("--content-language", attributes.content_language, "Content-Language of the objects");
  command.add_option("--expires", attributes.expires, "Expires of the objects, such as 2027-01-31T00:00:00Z");
  command.add_option("--website-redirect", attributes.website_redirect,
                     "Where a bucket that is a web site sends those who ask for the objects");
  command.add_option("--tagging", attributes.tagging, "Tags of the objects: name=value&name=value")->type_name("TAGS");
  command
      .add_option("--metadata-directive", metadata_directive,
                  "Of copies inside the store: COPY keeps the source's metadata, REPLACE drops all of it")
      ->check(OneOf({"COPY", "REPLACE"}));
}

void SourceFlags::AddTo(CLI::App& command) {
  command.add_option("--source-endpoint-url", endpoint_url,
                     "S3 endpoint of the source, if it is not the destination's");
  command.add_option("--source-profile", profile,
                     "Profile for the source; --endpoint-url is then the destination's alone");
  command.add_option("--source-region", region, "Region of the source");
}

void SourceFlags::Apply(object::ConnectOptions& options) const {
  if (!profile.empty()) {
    options.profile = profile;
    options.endpoint_url.clear();
    options.region.clear();
  }
  if (!endpoint_url.empty()) options.endpoint_url = endpoint_url;
  if (!region.empty()) options.region = region;
}

Status WriteFlags::Check() const {
  for (const std::string& pair : metadata) {
    std::size_t equals = pair.find('=');
    if (equals == 0 || equals == std::string::npos) {
      return Fail(Code::kInvalidArgument, "--metadata {}: expected name=value", pair);
    }
  }
  MR_TRY(CheckTags(attributes.tagging));
  if (!attributes.expires.empty() && !ParseHttpDate(attributes.expires) && !ParseIso8601(attributes.expires)) {
    return Fail(Code::kInvalidArgument, "--expires {}: expected a time such as 2027-01-31T00:00:00Z",
                attributes.expires);
  }
  if (metadata_directive == "COPY" && HasMetadata()) {
    return Fail(Code::kInvalidArgument, "--metadata-directive COPY keeps all metadata, and other flags replace them");
  }
  if (!attributes.kms_key.empty() && attributes.encryption == "AES256") {
    return Fail(Code::kInvalidArgument, "--sse-kms-key-id goes with --sse aws:kms, not AES256");
  }
  return {};
}

Status WriteFlags::CheckParts(const object::Limits& limits) const {
  if (!part_bytes || (*part_bytes >= limits.min_part && *part_bytes <= limits.max_part)) return {};
  return Fail(Code::kInvalidArgument, "--part-size {}: the destination takes parts from {} to {}",
              FormatBytes(*part_bytes), FormatBytes(limits.min_part), FormatBytes(limits.max_part));
}

object::PutOptions WriteFlags::ForUpload(const std::string& name) const {
  object::PutOptions put{
      .content_type = content_type.empty() ? std::string(ContentTypes::OfSystem().Of(name)) : content_type,
      .metadata = Pairs(metadata),
      .attributes = attributes};
  if (!attributes.kms_key.empty() && attributes.encryption.empty()) put.attributes.encryption = "aws:kms";
  if (const auto time = ParseIso8601(attributes.expires)) put.attributes.expires = FormatHttpDate(*time);
  return put;
}

bool WriteFlags::HasMetadata() const {
  const object::Attributes& a = attributes;
  return !metadata.empty() || !content_type.empty() || !a.cache_control.empty() || !a.content_encoding.empty() ||
         !a.content_disposition.empty() || !a.content_language.empty() || !a.expires.empty();
}

object::CopyOptions WriteFlags::ForCopy() const {
  object::CopyOptions copy{.attributes = ForUpload("").attributes};
  // S3 can replace the metadata of a copy only as a whole.
  const bool replace = metadata_directive == "REPLACE" || HasMetadata();
  if (replace) copy.metadata = Pairs(metadata);
  if (replace) copy.content_type = content_type;
  return copy;
}

}  // namespace millrace::cli
