// A vfs::Tree as a FUSE mount (libfuse3, low-level interface).
#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <stop_token>
#include <string>

#include "millrace/base/log.h"
#include "millrace/base/result.h"
#include "millrace/vfs/tree.h"

namespace millrace::mount {

class MountStats;

struct FuseOptions {
  std::string mount_point;  ///< absolute
  std::string source;       ///< what the mount table shows: the URL
  std::string store;        ///< the store's identity
  bool read_only = false;
  bool allow_other = false;
  bool xattrs = true;   ///< false: the kernel is told that there are none, and never asks again
  bool strict = false;  ///< what the tree's policies refuse is EPERM, as on Mountpoint
  std::uint64_t kernel_read_ahead = 1 * kMiB;
  int max_threads = 16;
  Duration flush_timeout = std::chrono::minutes(5);  ///< for publishing at the end
  MountStats* stats = nullptr;                       ///< required; must outlive the mount
  Logger log;
};

/// One mount. Made, served and destroyed by one thread.
class FuseMount {
 public:
  /// Mounts; requests wait until Serve. The tree must outlive the mount.
  static Result<std::unique_ptr<FuseMount>> Create(vfs::Tree& tree, FuseOptions options);
  virtual ~FuseMount() = default;  ///< unmounts
  /// Answers requests on threads of its own until somebody unmounts or `stop` fires, then publishes what open files
  /// have written. `live` runs once, as soon as the kernel has accepted the mount. Fails when something could not be
  /// published.
  virtual Status Serve(std::function<void()> live, std::stop_token stop) = 0;
};

}  // namespace millrace::mount
