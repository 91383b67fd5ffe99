#include "millrace/transfer/plan/region.h"

#include <netdb.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "millrace/base/files/mount_table.h"
#include "millrace/base/text.h"
#include "millrace/object/access_point.h"
#include "millrace/object/local/mount_location.h"

namespace millrace::transfer {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kFileUrl = "file://";

std::string WithoutSlashes(std::string_view path) {
  while (path.starts_with('/')) path.remove_prefix(1);
  while (path.ends_with('/')) path.remove_suffix(1);
  return std::string(path);
}

/// Splits a location: "http://host:9000/bucket/folder/" has domain "http://host:9000" and path "bucket/folder".
Region RegionOfLocation(std::string_view location) {
  const std::size_t scheme = location.find("://");
  const std::size_t slash = location.find('/', scheme == std::string_view::npos ? 0 : scheme + 3);
  if (location.starts_with("s3://")) return {"s3:", WithoutSlashes(location.substr(5))};
  if (slash == std::string_view::npos) return {std::string(location), ""};
  return {std::string(location.substr(0, slash)), WithoutSlashes(location.substr(slash))};
}

bool IsBelow(std::string_view path, std::string_view folder) {
  return folder.empty() || path == folder || (path.starts_with(folder) && path[folder.size()] == '/');
}

/// Returns the region of `folder`, a path without links, in its mount. If several mounts have one point, the last one
/// counts.
Region RegionOfFolder(const std::vector<MountEntry>& mounts, const std::string& folder) {
  const MountEntry* of = nullptr;
  for (const MountEntry& mount : mounts) {
    const bool above = IsBelow(WithoutSlashes(folder), WithoutSlashes(mount.point));
    if (above && (of == nullptr || mount.point.size() >= of->point.size())) of = &mount;
  }
  if (of == nullptr) return {"", WithoutSlashes(folder)};
  const auto location = of->type.starts_with("fuse") ? object::LocationInMount(folder) : std::nullopt;
  if (location && !location->starts_with(kFileUrl)) return RegionOfLocation(*location);
  if (location) {
    std::error_code error;
    const fs::path behind = fs::weakly_canonical(location->substr(kFileUrl.size()), error);
    if (!error && WithoutSlashes(behind.string()) != WithoutSlashes(folder)) {
      return RegionOfFolder(mounts, behind.string());
    }
  }
  const std::string rest = WithoutSlashes(WithoutSlashes(folder).substr(WithoutSlashes(of->point).size()));
  return {of->device, WithoutSlashes(of->root + "/" + rest)};
}

/// Returns the socket addresses of an endpoint: 127.0.0.1 port 9000, … of "http://localhost:9000".
std::set<std::string> AddressesOf(const std::string& endpoint) {
  std::string_view authority = endpoint;
  const bool secure = authority.starts_with("https://");
  authority.remove_prefix(std::min(authority.size(), authority.find("://") + 3));
  const std::size_t colon = authority.rfind(':');
  const bool has_port = colon != std::string_view::npos && authority.find(']', colon) == std::string_view::npos;
  std::string host(authority.substr(0, has_port ? colon : authority.size()));
  const std::string port(has_port ? authority.substr(colon + 1) : secure ? "443" : "80");
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  const addrinfo hints{.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
  addrinfo* found = nullptr;
  std::set<std::string> addresses;
  if (getaddrinfo(host.c_str(), port.c_str(), &hints, &found) != 0) return addresses;
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
    addresses.emplace(reinterpret_cast<const char*>(one->ai_addr), one->ai_addrlen);
  }
  freeaddrinfo(found);
  return addresses;
}

/// A path of a store: the bucket's name and what is behind it.
struct BucketPath {
  std::string_view bucket, key;
  bool access_point = false;  ///< the name may be another one of any bucket
};
BucketPath SplitBucket(std::string_view path) {
  std::string_view rest = path;
  if (object::IsArn(path) && object::ParseAccessPoint(path, &rest)) {
    return {path.substr(0, path.size() - rest.size()), rest.substr(std::min<std::size_t>(1, rest.size())), true};
  }
  const std::size_t slash = std::min(path.find('/'), path.size());
  const std::string_view bucket = path.substr(0, slash);
  return {bucket, path.substr(std::min(slash + 1, path.size())), bucket.ends_with("-s3alias")};
}

/// How two folders overlap by their names.
Overlap ComparePaths(std::string_view first, std::string_view second) {
  const bool in_second = IsBelow(first, second), in_first = IsBelow(second, first);
  if (!in_second && !in_first) return Overlap::kNone;
  return in_second && in_first ? Overlap::kSame : in_second ? Overlap::kFirstInSecond : Overlap::kSecondInFirst;
}

bool SameDomain(const std::string& a, const std::string& b) {
  if (a == b) return true;
  if (!a.starts_with("http") || !b.starts_with("http")) return false;
  const std::set<std::string> addresses = AddressesOf(a);
  return std::ranges::any_of(AddressesOf(b), [&](const std::string& one) { return addresses.contains(one); });
}

}  // namespace

Region RegionOf(const object::ReadStore& store, const std::string& prefix) {
  return RegionOfLocation(object::LocationText(store.Identity(), prefix));
}

Result<std::vector<Region>> RegionsOf(const std::string& folder) {
  std::error_code error;
  const std::string real = fs::weakly_canonical(folder, error).string();
  if (error) return Fail(ErrnoError(error.value(), "resolving " + folder));
  const std::vector<MountEntry> mounts = MR_TRY(ReadMountTable());
  // A path that does not exist is in the region of its closest parent that exists.
  std::string there = real, missing;
  while (there.size() > 1 && !fs::exists(there, error)) {
    const std::size_t slash = there.rfind('/');
    missing = there.substr(slash) + missing;
    there = slash == 0 ? "/" : there.substr(0, slash);
  }
  Region self = RegionOfFolder(mounts, there);
  self.path = WithoutSlashes(self.path + missing);
  std::vector<Region> regions = {std::move(self)};
  for (const MountEntry& mount : mounts) {
    const bool below = mount.point.size() > 1 && IsBelow(WithoutSlashes(mount.point), WithoutSlashes(real));
    if (below && WithoutSlashes(mount.point) != WithoutSlashes(real)) {
      regions.push_back(RegionOfFolder(mounts, mount.point));
    }
  }
  return regions;
}

Overlap Compare(const Region& first, const Region& second) {
  const bool stores = first.domain.starts_with("http") || first.domain == "s3:";
  const BucketPath a = SplitBucket(first.path), b = SplitBucket(second.path);
  // Only S3 knows which bucket is behind an access point. So it may be any.
  const bool any_bucket = stores && a.bucket != b.bucket && (a.access_point || b.access_point);
  const Overlap overlap = any_bucket ? ComparePaths(a.key, b.key) : ComparePaths(first.path, second.path);
  return overlap == Overlap::kNone || SameDomain(first.domain, second.domain) ? overlap : Overlap::kNone;
}

Overlap Compare(const std::vector<Region>& first, const std::vector<Region>& second) {
  for (const Region& a : first) {
    for (const Region& b : second) {
      if (const Overlap overlap = Compare(a, b); overlap != Overlap::kNone) return overlap;
    }
  }
  return Overlap::kNone;
}

std::optional<Region> SameFileCheck::Locate(const Name& name) {
  if (!name.local) return RegionOf(name.store, name.key);
  const std::size_t slash = name.key.rfind('/') + 1;  // npos + 1 == 0
  constexpr std::size_t kMaxFolders = 1024;           // names come sorted, so a listing needs the folders of one path
  if (folders_.size() > kMaxFolders) folders_.clear();
  auto [folder, fresh] = folders_.try_emplace("/" + name.key.substr(0, slash));
  if (fresh) folder->second = object::LocationInMount(folder->first);
  if (!folder->second) return std::nullopt;
  return RegionOfLocation(*folder->second + name.key.substr(slash));
}

bool SameFileCheck::Same(const Name& a, const Name& b) {
  if (a.local && b.local) {
    struct stat first, second;
    const bool both = stat(("/" + a.key).c_str(), &first) == 0 && stat(("/" + b.key).c_str(), &second) == 0;
    if (!both) return false;
    if (first.st_dev == second.st_dev && first.st_ino == second.st_ino) return true;
  }
  if (!a.local && !b.local) return a.key == b.key && a.store.Identity() == b.store.Identity();
  const auto first = Locate(a), second = Locate(b);
  return first && second && Compare(*first, *second) == Overlap::kSame;
}

}  // namespace millrace::transfer
