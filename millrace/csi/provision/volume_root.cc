#include "millrace/csi/provision/volume_root.h"

#include <algorithm>
#include <array>

#include "millrace/base/files/confine.h"
#include "millrace/base/hash/digest.h"
#include "millrace/base/hash/text_encoding.h"
#include "millrace/object/url.h"

namespace millrace::csi {
namespace {

constexpr std::string_view kScheme = "s3://";
constexpr std::array<std::string_view, 2> kFolders = {"volumes/", "snapshots/"};
constexpr std::size_t kMaxBucketBytes = 63;  // S3's rule

std::string_view FolderName(RootKind kind) { return kFolders.at(static_cast<std::size_t>(kind)); }

bool IsPlain(std::string_view name, bool bucket) {
  if (name.empty() || name.starts_with('.')) return false;
  return std::ranges::all_of(name, [bucket](char c) {
    if ((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-') return true;
    return !bucket && ((c >= 'A' && c <= 'Z') || c == '_' || c == '.');
  });
}

std::string HashedName(const std::string& name) { return "v-" + HexEncode(Sha256(AsBytes(name))).substr(0, 40); }

}  // namespace

std::string VolumeRoot::id() const {
  return fmt::format("{}{}{}{}", kScheme, bucket, own_bucket() ? "" : "/",
                     std::string_view(prefix).substr(0, prefix.empty() ? 0 : prefix.size() - 1));
}

std::optional<VolumeRoot> ParseRootId(std::string_view id) {
  if (!id.starts_with(kScheme) || id.size() > kMaxIdBytes) return std::nullopt;
  auto url = object::ParseUrl(id);
  if (!url || url->bucket.empty()) return std::nullopt;
  VolumeRoot root{.bucket = url->bucket, .prefix = url->key.empty() ? "" : url->key + "/"};
  if (root.id() != id) return std::nullopt;
  if (root.own_bucket()) return root;
  if (!CheckConfined(root.prefix, "", "a volume id")) return std::nullopt;
  // The last but one component is what tells a root from any other folder.
  const std::size_t name = root.prefix.rfind('/', root.prefix.size() - 2);
  if (name == std::string::npos) return std::nullopt;
  const std::string_view above = std::string_view(root.prefix).substr(0, name + 1);
  const bool known = std::ranges::any_of(kFolders, [above](std::string_view folder) {
    return above == folder || (above.ends_with(folder) && above[above.size() - folder.size() - 1] == '/');
  });
  return known ? std::optional(std::move(root)) : std::nullopt;
}

std::string VolumeLocation::FolderOf(RootKind kind) const { return fmt::format("{}{}", prefix, FolderName(kind)); }

Result<VolumeRoot> VolumeLocation::RootOf(RootKind kind, const std::string& name) const {
  auto make = [&](const std::string& chosen) -> VolumeRoot {
    if (bucket.empty()) return {.bucket = bucket_prefix + (kind == RootKind::kSnapshot ? "snap-" : "") + chosen};
    return {.bucket = bucket, .prefix = FolderOf(kind) + chosen + "/"};
  };
  auto fits = [&](const VolumeRoot& root) {
    return root.id().size() <= kMaxIdBytes && (!root.own_bucket() || root.bucket.size() <= kMaxBucketBytes);
  };
  VolumeRoot root = make(name);
  if (!IsPlain(name, bucket.empty()) || !fits(root)) root = make(HashedName(name));
  if (!fits(root)) {
    return Fail(Code::kInvalidArgument, "the id {} is longer than {} bytes; choose a shorter prefix", root.id(),
                root.own_bucket() ? kMaxBucketBytes : kMaxIdBytes);
  }
  return root;
}

VolumeLocation PlaceOf(const VolumeRoot& root, const std::string& bucket_prefix) {
  if (root.own_bucket()) return {.bucket_prefix = bucket_prefix};
  const std::size_t name = root.prefix.rfind('/', root.prefix.size() - 2);
  const std::size_t folder = name == 0 ? std::string::npos : root.prefix.rfind('/', name - 1);
  return {.bucket = root.bucket, .prefix = folder == std::string::npos ? "" : root.prefix.substr(0, folder + 1)};
}

}  // namespace millrace::csi
