#include "apps/millrace/objects/object_options.h"

#include <map>

#include "apps/common/flag_checks.h"
#include "millrace/base/text.h"

namespace millrace::cli {
namespace {

/// Returns the media type for the name's extension, or "", with which the store decides.
std::string ContentTypeOf(const std::string& name) {
  static const std::map<std::string, std::string, std::less<>> kTypes = {{"bin", "application/octet-stream"},
                                                                         {"css", "text/css"},
                                                                         {"csv", "text/csv"},
                                                                         {"gif", "image/gif"},
                                                                         {"gz", "application/gzip"},
                                                                         {"html", "text/html"},
                                                                         {"jpeg", "image/jpeg"},
                                                                         {"jpg", "image/jpeg"},
                                                                         {"js", "text/javascript"},
                                                                         {"json", "application/json"},
                                                                         {"md", "text/markdown"},
                                                                         {"mp4", "video/mp4"},
                                                                         {"pdf", "application/pdf"},
                                                                         {"png", "image/png"},
                                                                         {"svg", "image/svg+xml"},
                                                                         {"tar", "application/x-tar"},
                                                                         {"txt", "text/plain"},
                                                                         {"wav", "audio/wav"},
                                                                         {"xml", "application/xml"},
                                                                         {"yaml", "application/yaml"},
                                                                         {"zip", "application/zip"},
                                                                         {"zst", "application/zstd"}};
  std::size_t dot = name.rfind('.');
  auto found = dot == std::string::npos ? kTypes.end() : kTypes.find(ToLower(name.substr(dot + 1)));
  return found == kTypes.end() ? "" : found->second;
}

/// The part before the first '=' in lower case, and the part behind it.
std::map<std::string, std::string> Pairs(const std::vector<std::string>& metadata) {
  std::map<std::string, std::string> pairs;
  for (const std::string& pair : metadata) {
    std::size_t equals = pair.find('=');
    pairs[ToLower(pair.substr(0, equals))] = pair.substr(equals + 1);
  }
  return pairs;
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
  if (!attributes.kms_key.empty() && attributes.encryption == "AES256") {
    return Fail(Code::kInvalidArgument, "--sse-kms-key-id goes with --sse aws:kms, not AES256");
  }
  return {};
}

object::PutOptions WriteFlags::ForUpload(const std::string& name) const {
  object::PutOptions put{.content_type = content_type.empty() ? ContentTypeOf(name) : content_type,
                         .metadata = Pairs(metadata),
                         .attributes = attributes};
  if (!attributes.kms_key.empty() && attributes.encryption.empty()) put.attributes.encryption = "aws:kms";
  return put;
}

object::CopyOptions WriteFlags::ForCopy() const {
  object::CopyOptions copy{.attributes = ForUpload("").attributes};
  const object::Attributes& a = attributes;
  // S3 can replace the metadata of a copy only as a whole.
  bool replace = !metadata.empty() || !content_type.empty() || !a.cache_control.empty() ||
                 !a.content_encoding.empty() || !a.content_disposition.empty();
  if (replace) copy.metadata = Pairs(metadata);
  if (replace) copy.content_type = content_type;
  return copy;
}

}  // namespace millrace::cli
