// Recovery of the renames and files that earlier mounts left, without mounting.
#pragma once

#include <cstdint>
#include <filesystem>
#include <stop_token>

#include "millrace/base/result.h"
#include "millrace/mount/source.h"
#include "millrace/vfs/rename/rename_recovery.h"

namespace millrace::mount {

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
