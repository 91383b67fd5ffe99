// The source of a mount: a bucket, a prefix of one, a folder, or all buckets.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "millrace/base/bytes.h"
#include "millrace/base/clock.h"
#include "millrace/base/log.h"
#include "millrace/base/result.h"
#include "millrace/object/connection.h"
#include "millrace/vfs/tree.h"

namespace millrace::mount {

/// The options of the mounted source, and of its files. Serve and Recover take the same options for the same mount.
struct SourceOptions {
  std::string url;         ///< "s3://bucket[/prefix]", "s3://" for all buckets, "file:///folder" or a path
  std::string key_prefix;  ///< shows only the keys below this prefix of the URL's; must not begin with '/'
  bool read_only = false;
  std::optional<WallTime> at;  ///< shows a bucket that keeps versions as it was then; needs read_only
  bool allow_delete = true, allow_overwrite = true;
  /// The owner and the modes of files that store none.
  std::uint32_t uid = ::geteuid(), gid = ::getegid();
  std::uint32_t file_permissions = 0644, directory_permissions = 0755;
  vfs::StoredAttributesPolicy stored_attributes = vfs::StoredAttributesPolicy::kAuto;
  /// For how long names, attributes and versions are used without asking the store, also by open. Not set: one second,
  /// but every open asks the store.
  std::optional<Duration> metadata_ttl;
  std::optional<Duration> negative_ttl;  ///< the same for absent names; not set: as metadata_ttl
  std::uint64_t read_part_bytes = 8 * kMiB, write_part_bytes = 8 * kMiB;
  int parallel_listing = 1;  ///< see vfs::TreeOptions
  /// See vfs::TreeOptions: true makes close wait for local disk only.
  bool close_async = false;
  Duration publish_delay = std::chrono::seconds(1);
  /// Where written bytes wait for the store. Empty: "staging" in the user's cache folder.
  std::filesystem::path staging_directory;
  /// The most bytes in that folder. Beyond this, writes fail with kNoSpace. 0: a quarter of the free disk.
  std::uint64_t staging_limit = 0;
  /// The most bytes below the prefix; 0: no limit. See vfs/write/quota.h.
  std::uint64_t quota_bytes = 0;
  /// The key of an object, a JSON document whose member "capacity_bytes" is the limit instead, as long as it can be
  /// read. So the limit can change while the mount is there. Empty: none.
  std::string quota_object;
  Logger log;
};

/// The store behind a mount, and the options of the tree on it.
struct OpenedSource {
  object::Location root;
  vfs::TreeOptions tree;
};

/// Opens the store that `options.url` names. Makes no request. The connection must outlive the result.
/// Errors: kInvalidArgument if the URL or the prefix is malformed; those of object::Locate.
Result<OpenedSource> OpenSource(object::Connection& connection, const SourceOptions& options);

/// Chooses the staging folder of a tree that is not read-only. Warns of files that an earlier release staged elsewhere.
/// Errors: those of DefaultCacheFolder.
Status ChooseStaging(const SourceOptions& options, OpenedSource& source);

}  // namespace millrace::mount
