// Ending a mount, from any process of the machine.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <stop_token>
#include <string>

#include "millrace/base/clock.h"
#include "millrace/base/result.h"

namespace millrace::mount {

struct UnmountOptions {
  bool lazy = false;  ///< detaches the mount even while files are open
  Duration timeout = std::chrono::minutes(5);
};

enum class UnmountOutcome : std::uint8_t {
  kUnmounted,        ///< nothing is mounted any more, and the store has everything that was written
  kInUse,            ///< programs have files open; the mount stays. Not with `lazy`
  kStillPublishing,  ///< detached, but the daemon has not ended: the timeout has passed, or `stop` has fired
  kFilesLeft,        ///< unmounted, but files are staged that the store does not have
};

struct UnmountReport {
  UnmountOutcome outcome = UnmountOutcome::kUnmounted;
  std::string mount_point;  ///< without symbolic links
  std::string source;       ///< what was mounted: a URL
  pid_t daemon = 0;         ///< 0: it was gone already
  /// With kInUse: the files being written. Else: the files that are not in the store.
  int files = 0;
  std::uint64_t bytes = 0;
  std::filesystem::path staging_directory;  ///< with kFilesLeft: where they are
};

/// Unmounts and waits until the daemon has published everything and ended. Removes a mount whose daemon was killed.
/// Errors: kNotFound if nothing is mounted there; kInvalidArgument if it is no FUSE mount; kUnsupported if it is
/// another program's; those of umount(2) and fusermount3.
Result<UnmountReport> Unmount(const std::string& path, const UnmountOptions& options, const std::stop_token& stop);

}  // namespace millrace::mount
