// Ending a mount, from any process of the machine.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <stop_token>
#include <string>
#include <vector>

#include "millrace/base/clock.h"
#include "millrace/base/result.h"
#include "millrace/mount/point/control.h"
#include "millrace/mount/point/mount_point.h"

namespace millrace::mount {

struct UnmountOptions {
  bool lazy = false;  ///< detaches the mount even while files are open
  /// Ends the mount also where it is shown at other places, bind mounts and other mount namespaces: programs there get
  /// ENOTCONN once everything is published.
  bool everywhere = false;
  Duration timeout = std::chrono::minutes(5);
  /// What the daemon answered, if the caller has asked already, and the path has no symbolic links. Then Unmount does
  /// not ask, and cannot block on a daemon that hangs. Null: Unmount asks. Borrowed for the call.
  const DaemonAnswer* asked = nullptr;
};

enum class UnmountOutcome : std::uint8_t {
  kUnmounted,        ///< nothing is mounted any more, and the store has everything that was written
  kInUse,            ///< programs have files open; the mount stays. Not with `lazy`
  kShownElsewhere,   ///< detached, but the daemon serves other places on. Not with `everywhere`
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
  std::vector<MountView> elsewhere;         ///< with kShownElsewhere: where
};

/// Unmounts and waits until the daemon has published everything and ended. Removes a mount whose daemon was killed.
/// Errors: kNotFound if nothing is mounted there; kInvalidArgument if it is no FUSE mount; kUnsupported if it is
/// another program's, or its daemon is in another PID namespace, where nobody here can wait for it; those of umount(2)
/// and fusermount3.
Result<UnmountReport> Unmount(const std::string& path, const UnmountOptions& options, const std::stop_token& stop);

}  // namespace millrace::mount
