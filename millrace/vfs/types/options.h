// The options of a caller that opens a tree.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "millrace/base/bytes.h"
#include "millrace/base/clock.h"
#include "millrace/base/log.h"
#include "millrace/base/result.h"
#include "millrace/object/requests.h"

namespace millrace::vfs {

class SessionLog;
struct SessionState;

/// The policy that decides whether modes, owners, times, extended attributes and symbolic links are kept in object
/// metadata.
enum class StoredAttributesPolicy : std::uint8_t {
  kAuto,    ///< the store is asked for the attributes of entries of directories that are marked as having some
  kAlways,  ///< the store is asked for the attributes of every entry: for buckets written by s3fs or rclone
  kNever,   ///< attributes are neither stored nor read
};

/// Returns whether the process with this TreeOptions::owner is still running; nothing if that cannot be known here.
using OwnerAlive = std::function<std::optional<bool>(std::string_view owner)>;

/// The options of a Tree. A value type.
struct TreeOptions {
  std::string prefix;  ///< the root of the tree; empty, or ends with '/'
  bool read_only = false;
  /// Directories at the top are buckets (OpenAllBuckets of object/open/open.h). They cannot be renamed. Each bucket
  /// holds the records that the tree writes for it.
  bool buckets_at_top = false;
  bool allow_delete = true, allow_overwrite = true;  ///< false: deleting, or overwriting, is kPermissionDenied
  StoredAttributesPolicy stored_attributes = StoredAttributesPolicy::kAuto;
  /// The owner and permissions of files and directories that store no attributes.
  std::uint32_t uid = 0, gid = 0, file_permissions = 0644, directory_permissions = 0755;
  /// The time for which names, attributes and listings may be used after the store sent them.
  Duration metadata_ttl = std::chrono::seconds(1);
  /// The time for which a name counts as absent after the store's answer.
  Duration negative_ttl = std::chrono::seconds(1);
  /// True: every open asks the store for the current version (close-to-open consistency). False: an open uses what the
  /// store said within the last metadata_ttl.
  bool revalidate_open = true;
  /// The most key ranges of one long listing that are listed at the same time: see PageStream. 1: one page at a time.
  int parallel_listing = 1;
  std::uint64_t read_part_bytes = 8 * kMiB;
  std::uint64_t max_readahead = 128 * kMiB;  ///< of one file; all files together use at most half of the cache's memory
  std::uint64_t write_part_bytes = 8 * kMiB;
  /// The folder for bytes that were written and are not published yet. A tree that is not read-only needs it.
  std::filesystem::path staging_directory;
  std::uint64_t staging_limit = 16 * kGiB;
  std::string staging_target;  ///< names the store: files of several stores may be staged in the folder
  /// The most bytes below the root. Asked from time to time, so that the limit can change; 0: no limit. Empty: none.
  /// Writes beyond it fail with kNoSpace. See write/quota.h: several clients together may pass it.
  std::function<Result<std::uint64_t>(const object::Call&)> quota;
  /// False: Flush and Close publish. True: Flush and Close stage the content, so that it outlives the process. It is
  /// published in the background, `publish_delay` later. Removing or renaming the file before then costs no request.
  bool close_async = false;
  Duration publish_delay = std::chrono::seconds(1);
  Clock* clock = &SystemClock();  ///< must outlive the tree
  /// The name of this process in rename records (RenameRecord::owner). Choose one that no other process has.
  std::string owner = "unknown";
  /// Decides whether the owner of another record is alive. Empty: only the record's age decides.
  OwnerAlive owner_alive;
  /// Gets the state that another process needs to go on with this tree and its open files. May be null. Must outlive
  /// the tree.
  SessionLog* session = nullptr;
  /// The state of another process, whose inodes and contents the tree begins with. May be null. Used by Open only.
  const SessionState* restored = nullptr;
  WallTime began{};  ///< the time that directories without a time of their own show; the epoch: now
  Logger log;
};

}  // namespace millrace::vfs
