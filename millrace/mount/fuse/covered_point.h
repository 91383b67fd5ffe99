// The mount point of a mount that may have been detached, while other mount namespaces show the mount on.
#pragma once

#define FUSE_USE_VERSION 312
#include <fuse3/fuse_lowlevel.h>

#include <string>

namespace millrace::mount {

/// A mount point, and what was mounted there.
class CoveredPoint {
 public:
  CoveredPoint() = default;
  /// Call right after mounting.
  explicit CoveredPoint(std::string mount_point);
  /// Returns whether that mount is there: another one may be, or none.
  bool IsOurs() const;

 private:
  std::string mount_point_, device_;
};

/// Closes the session's FUSE descriptor, and keeps libfuse from unmounting what is at the session's mount point.
void LeaveMountPoint(fuse_session* session);

}  // namespace millrace::mount
