#include "millrace/mount/source.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "millrace/base/files/managed_folder.h"
#include "millrace/base/json.h"
#include "millrace/base/process/process_name.h"
#include "millrace/object/blocking.h"
#include "millrace/object/open/open.h"
#include "millrace/object/open/version_view.h"
#include "millrace/vfs/staging/staging_area.h"

namespace millrace::mount {
namespace {

Result<vfs::TreeOptions> TreeOptions(const SourceOptions& source, const object::Url& url, const std::string& key) {
  vfs::TreeOptions options{.prefix = key, .read_only = source.read_only, .log = source.log};
  if (!options.prefix.empty() && !options.prefix.ends_with('/')) options.prefix += '/';
  options.prefix += source.key_prefix;
  if (!options.prefix.empty() && !options.prefix.ends_with('/')) options.prefix += '/';
  if (options.prefix.starts_with('/')) return Fail(Code::kInvalidArgument, "--prefix must not begin with '/'");
  options.buckets_at_top = url.scheme == object::Url::Scheme::kS3 && url.bucket.empty() && options.prefix.empty();
  options.metadata_ttl = source.metadata_ttl.value_or(options.metadata_ttl);
  options.negative_ttl =
      source.negative_ttl.value_or(source.metadata_ttl ? *source.metadata_ttl : options.negative_ttl);
  options.revalidate_open = !source.metadata_ttl;
  options.owner = ProcessName();
  options.owner_alive = IsProcessAlive;
  options.uid = source.uid;
  options.gid = source.gid;
  options.file_permissions = source.file_permissions;
  options.directory_permissions = source.directory_permissions;
  options.stored_attributes = source.stored_attributes;
  options.allow_delete = source.allow_delete;
  options.allow_overwrite = source.allow_overwrite;
  options.read_part_bytes = source.read_part_bytes;
  options.parallel_listing = source.parallel_listing;
  options.write_part_bytes = source.write_part_bytes;
  options.close_async = source.close_async;
  options.publish_delay = source.publish_delay;
  return options;
}

/// Old releases, without managed folders, staged files in a folder below /var/tmp. Warns if they left files there. Does
/// not read a folder of another user, who may have made it under this user's name.
void WarnOfEarlierStaging(const std::string& url, const std::string& target, const Logger& log) {
  const std::string folder = fmt::format("/var/tmp/millrace-{}/staging", ::geteuid());
  struct stat info{};
  if (::lstat(folder.c_str(), &info) != 0 || !S_ISDIR(info.st_mode) || info.st_uid != ::geteuid()) return;
  const auto left = vfs::StagingArea::FindLeftovers(folder, target);
  if (left.files == 0) return;
  log.Warning("an earlier release left staged files; publish them with --recover and --staging-dir",
              {{"folder", folder}, {"files", left.files}, {"url", url}});
}

/// Returns a quarter of the free disk, so that other programs find room too.
std::uint64_t DefaultStagingLimit(std::filesystem::path directory) {
  std::error_code error;
  while (!std::filesystem::exists(directory, error) && directory.has_relative_path())
    directory = directory.parent_path();
  const auto space = std::filesystem::space(directory, error);
  return error ? 1 * kGiB : std::max<std::uint64_t>(space.available / 4, 64 * kMiB);
}

/// Returns the bucket of `url`; for "s3://", all buckets.
Result<object::Location> OpenRoot(object::Connection& connection, const object::Url& url) {
  if (url.scheme == object::Url::Scheme::kS3 && url.bucket.empty()) {
    return object::Location{MR_TRY(object::OpenAllBuckets(connection)), ""};
  }
  return object::Locate(connection, url.ToString());
}

/// The limit of a quota's object. Errors: kNotFound if there is none.
Result<std::uint64_t> ReadLimit(object::Store& store, const std::string& key, const object::Call& call) {
  constexpr std::size_t kMaxBytes = 64 * kKiB;
  const auto content = MR_TRY(object::GetAll(store, key, kMaxBytes, call));
  if (!content)
    return Fail(Code::kNotFound, "no object {}; create it with a member capacity_bytes, the limit in bytes", key);
  const Json json = MR_TRY(ParseJson(content->bytes, key));
  const std::int64_t bytes = MR_TRY(JsonInt(json, "capacity_bytes"));
  if (bytes < 0) return Fail(Code::kInvalidArgument, "{}: a capacity of {} bytes; expected at least 0", key, bytes);
  return static_cast<std::uint64_t>(bytes);
}

}  // namespace

Result<OpenedSource> OpenSource(object::Connection& connection, const SourceOptions& options) {
  const object::Url url = MR_TRY(object::ParseUrl(options.url));
  if (url.scheme == object::Url::Scheme::kHub && !options.read_only) {
    return Fail(Code::kReadOnly, "{}: the hub is only read from; mount it with --read-only", options.url);
  }
  object::Location root = MR_TRY(OpenRoot(connection, url));
  if (options.at) {
    if (!options.read_only || url.scheme != object::Url::Scheme::kS3 || url.bucket.empty()) {
      return Fail(Code::kInvalidArgument, "{}: a view of an earlier time is of one bucket, with --read-only",
                  options.url);
    }
    root.store = object::ViewAsOf(std::move(root.store), *options.at);
  }
  vfs::TreeOptions tree = MR_TRY(TreeOptions(options, url, root.key));
  tree.staging_target = root.store->Identity();
  if (options.quota_bytes > 0 || !options.quota_object.empty()) {
    tree.quota = [store = root.store, bytes = options.quota_bytes,
                  key = options.quota_object](const object::Call& call) -> Result<std::uint64_t> {
      if (key.empty()) return bytes;
      auto limit = ReadLimit(*store, key, call);
      // Not because of an error that passes: the limit would be another one until the next listing.
      const bool none =
          !limit && (limit.error().code() == Code::kNotFound || limit.error().code() == Code::kPermissionDenied);
      return none ? bytes : limit;
    };
  }
  return OpenedSource{std::move(root), std::move(tree)};
}

Status ChooseStaging(const SourceOptions& options, OpenedSource& source) {
  vfs::TreeOptions& tree = source.tree;
  if (tree.read_only) return {};
  if (options.staging_directory.empty()) {
    tree.staging_directory = MR_TRY(DefaultCacheFolder("--staging-dir")) / "staging";
    WarnOfEarlierStaging(options.url, tree.staging_target, tree.log);
  } else {
    tree.staging_directory = std::filesystem::absolute(options.staging_directory);
  }
  tree.staging_limit = options.staging_limit > 0 ? options.staging_limit : DefaultStagingLimit(tree.staging_directory);
  return {};
}

}  // namespace millrace::mount
