// Serving a mount, from a URL and a folder to a file system that programs use; and recovery without mounting.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <stop_token>
#include <string>

#include "millrace/base/bytes.h"
#include "millrace/base/clock.h"
#include "millrace/base/result.h"
#include "millrace/metrics/endpoint.h"
#include "millrace/mount/source.h"
#include "millrace/vfs/rename/rename_recovery.h"

namespace millrace::mount {

/// The place where a mount is kept while its process is dead: see daemon/session_holder.h.
struct SessionHolderOptions {
  std::string socket;         ///< of the keeper
  std::string name;           ///< of the mount at the keeper
  std::filesystem::path log;  ///< the file of the mount's SessionLog, which belongs to one mount
};

/// One mount. mount_point, source.url and memory_bytes are required.
struct SessionOptions {
  SourceOptions source;
  std::string mount_point;   ///< what PrepareMountPoint returned; with `keeper`, an absolute path that it would return
  bool allow_other = false;  ///< other users may use the mount, within the files' modes
  bool allow_root = false;   ///< root may use the mount, and no other user. Excludes allow_other
  int max_threads = 16;      ///< requests served at a time; fewer if memory_bytes is small
  std::uint64_t kernel_read_ahead = 1 * kMiB;
  /// Memory of the whole process. Serve uses all but process_bytes for threads, cache and data in flight.
  std::uint64_t memory_bytes = 0;
  std::uint64_t process_bytes = 0;        ///< what the process takes besides the mount: code, connections
  std::filesystem::path cache_directory;  ///< a managed folder for blocks on disk; empty: no disk cache
  std::uint64_t cache_disk_bytes = 20 * kGiB;
  /// The time for which Serve tries to publish at the end. Files that are not published by then stay staged for the
  /// next mount.
  Duration flush_timeout = std::chrono::minutes(5);
  std::optional<metrics::EndpointOptions> metrics;  ///< where /metrics is served, if anywhere
  /// Another process can go on with this mount if this process dies. If the keeper has a mount of that name, Serve goes
  /// on with it, and mounts nothing. Needs root, and Linux 6.9; on an older kernel the mount is not kept.
  std::optional<SessionHolderOptions> keeper;
};

/// Mounts `options.source` on `options.mount_point` and serves it. Blocks until it is unmounted or `stop` fires,
/// and then until open files are published or flush_timeout has passed. Calls `on_live` once, on another thread, as
/// soon as the mount answers; if `on_live` fails, the mount goes on, and Serve returns that failure at the end.
///
/// The connection must outlive the call. A process may serve several mounts, each from a thread of its own. Takes over
/// SIGUSR1, which wakes the serving thread.
/// Errors: kNotFound if a folder to show does not exist; kUnsupported if the store ignores conditions of writes and the
/// mount is not read-only; kInvalidArgument if the memory is too small; those of the store, of the cache and staging
/// folders, of mounting and of publishing. With `keeper`: kUnavailable if none listens; kBusy if another process serves
/// the mount; kCorrupt if that process's log cannot be read: then the mount ends, and programs get ENOTCONN.
Status Serve(object::Connection& connection, const SessionOptions& options, std::function<Status()> on_live,
             std::stop_token stop);

struct RecoveryReport {
  int files_published = 0;
  int files_left = 0;  ///< still in staging_directory
  std::filesystem::path staging_directory;
  vfs::RecoveredRenames renames;
  Status result;  ///< the first failure to publish a file or to take one over; else success
};

/// Does what the next mount of `options` would do first: finishes or undoes directory renames that were cut off, and
/// publishes staged files. Blocks until all files are published or have failed, or `stop` fires. May be repeated after
/// a failure. `memory_bytes` bounds cache and data in flight. The connection must outlive the call. Errors: those of
/// the store and of the staging folder, if nothing could be done. The report has the failures of files.
Result<RecoveryReport> Recover(object::Connection& connection, const SourceOptions& options, std::uint64_t memory_bytes,
                               std::stop_token stop);

}  // namespace millrace::mount
