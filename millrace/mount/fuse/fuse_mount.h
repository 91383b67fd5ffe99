// A FUSE mount of a vfs::Tree, through libfuse3's low-level interface.
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
  std::string source;       ///< the URL, for the mount table
  std::string store;        ///< the store's identity
  bool read_only = false;
  bool allow_other = false;
  bool xattrs = true;   ///< false: getxattr returns ENOSYS, and the kernel never asks again
  bool strict = false;  ///< changes that the tree's policies refuse return EPERM, as on Mountpoint
  std::uint64_t kernel_read_ahead = 1 * kMiB;
  int max_threads = 16;
  Duration flush_timeout = std::chrono::minutes(5);  ///< for publishing at the end
  MountStats* stats = nullptr;                       ///< required; must outlive the mount
  Logger log;
};

/// One mount. One thread makes, serves and destroys it.
class FuseMount {
 public:
  /// Mounts. Requests wait until Serve. The tree must outlive the mount.
  /// Errors: kIo if the kernel or fusermount3 refuses the mount.
  static Result<std::unique_ptr<FuseMount>> Create(vfs::Tree& tree, FuseOptions options);
  virtual ~FuseMount() = default;  ///< unmounts
  /// Answers requests on threads of its own until it is unmounted or `stop` fires. Then publishes the content of
  /// open files. Calls `live` once, as soon as the kernel has accepted the mount. Errors: the first failure to
  /// publish; those of libfuse's loop.
  virtual Status Serve(std::function<void()> live, std::stop_token stop) = 0;
};

}  // namespace millrace::mount
