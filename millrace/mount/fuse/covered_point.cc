#include "millrace/mount/fuse/covered_point.h"

#include <fcntl.h>
#include <unistd.h>

#include "millrace/mount/point/mount_point.h"

namespace millrace::mount {

CoveredPoint::CoveredPoint(std::string mount_point) : mount_point_(std::move(mount_point)) {
  if (const auto mounted = FindMount(mount_point_); mounted && *mounted) device_ = (*mounted)->device;
}

bool CoveredPoint::IsOurs() const {
  const auto mounted = FindMount(mount_point_);
  return mounted && *mounted && (*mounted)->device == device_;
}

void LeaveMountPoint(fuse_session* session) {
  // libfuse unmounts nothing if its descriptor reports an error (fuse_kern_unmount), as a pipe without a reader does.
  int pipe[2];
  if (::pipe2(pipe, O_CLOEXEC) != 0) return;
  ::close(pipe[0]);
  ::dup2(pipe[1], fuse_session_fd(session));
  ::close(pipe[1]);
}

}  // namespace millrace::mount
