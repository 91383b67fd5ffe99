// What a FUSE session needs so that another process can go on with it: the kernel's first request, which comes only
// once, and the numbers of the requests that the kernel sends again.
#pragma once

#define FUSE_USE_VERSION 312
#include <fuse3/fuse_lowlevel.h>

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>

#include "millrace/base/result.h"

namespace millrace::mount {

/// The kernel's INIT request, as it came, and what was agreed on in the answer.
struct SessionStart {
  std::string request;
  unsigned want = 0;  ///< fuse_conn_info::want
  /// Returns true if this kernel sends requests again that a dead process had read (Linux 6.9).
  bool can_resend() const;
};

/// The request that the calling thread has read last.
struct RequestOrigin {
  std::uint64_t number = 0;  ///< the same when the request is sent again
  bool repeated = false;     ///< another process has read it, and perhaps done it, and has not answered
  static const RequestOrigin& Current();
};

/// Reads and answers for one libfuse session, whose loop must not clone descriptors: requests that were read through a
/// clone end with the clone. Lives as long as the session.
class KeptSession {
 public:
  /// For a new mount: `session` is mounted. Errors: those of libfuse.
  static Status Attach(fuse_session* session, KeptSession* kept);
  /// For the mount of another process, whose descriptor is `device`. Takes the descriptor.
  static Status Resume(fuse_session* session, KeptSession* kept, SessionStart start, int device);

  /// Serves INIT: the kernel's, or, after Resume, the one that the other process has answered. Call before the loop.
  Status ServeInit(fuse_session* session);
  /// Makes the kernel send again what the other process had read. Call after ServeInit. Errors: those of the kernel.
  static Status RequestResend(fuse_session* session);
  SessionStart& start() { return start_; }
  bool resumed() const { return resumed_; }

 private:
  static Status SetIo(fuse_session* session, KeptSession* kept, int device);
  static ssize_t Read(int fd, void* buffer, size_t size, void* userdata);
  static ssize_t Write(int fd, iovec* pieces, int count, void* userdata);

  SessionStart start_;
  bool resumed_ = false;
  bool in_init_ = false;  ///< changed only while no other thread reads or writes
};

}  // namespace millrace::mount
