// The common part of all FUSE request handlers: cancellation, conversion of attributes, errors.
#pragma once

#define FUSE_USE_VERSION 312
#include <fuse3/fuse_lowlevel.h>

#include <functional>
#include <optional>
#include <stop_token>

#include "millrace/mount/fuse/fuse_mount.h"
#include "millrace/object/requests.h"

namespace millrace::mount {

class ResumableSession;

constexpr std::uint64_t kMaxRequest = 1 * kMiB;  ///< of one read or write; the kernel's limit: 256 pages

/// The state that all handlers share. It is the FUSE session's user data.
struct RequestContext {
  vfs::Tree& tree;
  const FuseOptions options;
  ResumableSession* kept = nullptr;  ///< null unless another process can go on with the mount
  std::stop_source ended;            ///< fires when the mount has ended, and no program waits for a reply any more
  static RequestContext& Of(fuse_req_t request) { return *static_cast<RequestContext*>(fuse_req_userdata(request)); }
};

/// Cancels one request when the process that sent it is being killed, or the mount has ended. Other signals do not
/// cancel it, because most programs do not expect a read to fail with EINTR. Lives on the handler's stack and must be
/// destroyed before the reply.
class Interruptible {
 public:
  explicit Interruptible(fuse_req_t request);
  ~Interruptible();
  Interruptible(const Interruptible&) = delete;
  Interruptible& operator=(const Interruptible&) = delete;
  object::Call call() const { return {.stop = stop_.get_token()}; }

 private:
  static void OnInterrupt(fuse_req_t request, void* self);
  const fuse_req_t request_;
  std::stop_source stop_;
  const std::stop_callback<std::function<void()>> at_end_;
};

/// Returns the process (not the thread) that sent the request, or 0 if it is unknown.
pid_t ProcessOf(fuse_req_t request);

/// Returns the file type bits of st_mode.
mode_t TypeOf(vfs::NodeKind kind);
struct stat ToStat(const vfs::NodeAttributes& attributes);
fuse_entry_param ToEntry(const vfs::CacheableAttributes& entry);

/// Counts and logs the failure of a request and returns the errno for its reply. Logs expected answers such as "not
/// found" at level debug, and faults of the store or of Millrace as warnings.
int LogFailure(const FuseOptions& options, const char* operation, fuse_ino_t inode, const Error& error);

}  // namespace millrace::mount
