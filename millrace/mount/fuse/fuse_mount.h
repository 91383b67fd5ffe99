// A FUSE mount of a vfs::Tree, through libfuse3's low-level interface.
#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <stop_token>
#include <string>

#include "millrace/base/files/files.h"
#include "millrace/base/log.h"
#include "millrace/base/result.h"
#include "millrace/vfs/staging/session_log.h"
#include "millrace/vfs/tree.h"

namespace millrace::mount {

class MountStats;

struct FuseOptions {
  std::string mount_point;  ///< absolute
  std::string source;       ///< the URL, for the mount table
  std::string store;        ///< the store's identity
  bool read_only = false;
  bool allow_other = false;
  bool allow_root = false;  ///< excludes allow_other
  bool xattrs = true;       ///< false: getxattr returns ENOSYS, and the kernel never asks again
  bool strict = false;      ///< changes that the tree's policies refuse return EPERM, as on Mountpoint
  std::uint64_t kernel_read_ahead = 1 * kMiB;
  int max_threads = 16;
  Duration flush_timeout = std::chrono::minutes(5);  ///< for publishing at the end
  /// If another process can go on with the mount: the log of the session. Must outlive the mount.
  vfs::SessionLog* session = nullptr;
  /// Called before `live`, when another process could go on: keeps the FUSE descriptor. Required with `session`.
  std::function<Status(int device)> keep;
  /// TreeOptions::began, for the header of the log.
  WallTime began{};
  MountStats* stats = nullptr;  ///< required; must outlive the mount
  Logger log;
};

/// The mount of another process, to go on with.
struct MountToResume {
  UniqueFd device;  ///< its FUSE descriptor
  const vfs::SessionState* state = nullptr;
};

/// One mount. One thread makes, serves and destroys it.
class FuseMount {
 public:
  /// Mounts. Requests wait until Serve. The tree must outlive the mount.
  /// Errors: kIo if the kernel or fusermount3 refuses the mount.
  static Result<std::unique_ptr<FuseMount>> Create(vfs::Tree& tree, FuseOptions options);
  /// Goes on with a mount whose process died. Its open files are opened again, and the kernel sends the requests again
  /// that were not answered. REQUIRES: options.session; the tree was restored from the same state, which must outlive
  /// the call. Errors: kCorrupt if the state lacks the session's start.
  static Result<std::unique_ptr<FuseMount>> Resume(vfs::Tree& tree, FuseOptions options, MountToResume mount);
  virtual ~FuseMount() = default;  ///< unmounts
  /// Answers requests on threads of its own until it is unmounted or `stop` fires. Then publishes the content of
  /// open files. Calls `live` once, as soon as the kernel has accepted the mount. Errors: the first failure to
  /// publish; those of reading the kernel's requests.
  virtual Status Serve(std::function<void()> live, std::stop_token stop) = 0;
};

}  // namespace millrace::mount
