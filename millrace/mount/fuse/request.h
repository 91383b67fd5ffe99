// The common part of all FUSE request handlers: cancellation, conversion of attributes, errors.
#pragma once

#define FUSE_USE_VERSION 312
#include <fuse3/fuse_lowlevel.h>

#include <functional>
#include <optional>
#include <stop_token>

#include "millrace/mount/fuse/fuse_mount.h"
#include "millrace/mount/fuse/open_files.h"
#include "millrace/object/requests.h"

namespace millrace::mount {

class ResumableSession;

constexpr std::uint64_t kMaxRequest = 1 * kMiB;  ///< of one read or write; the kernel's limit: 256 pages

/// The state that all handlers share. It is the FUSE session's user data.
struct RequestContext {
  RequestContext(vfs::Tree& served, FuseOptions how) : tree(served), options(std::move(how)), files(options.session) {}

  vfs::Tree& tree;
  const FuseOptions options;
  OpenFiles files;
  fuse_session* session = nullptr;
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

/// Returns the owner and the permissions of a new file.
vfs::Ownership OwnershipOf(fuse_req_t request, mode_t mode);
/// Returns null for a file that was lost with another process.
FileHandle* FindFile(fuse_req_t request, const fuse_file_info* info);

// A reply destroys the request.

/// Counts and logs the failure of a request and replies with its errno. Logs expected answers such as "not found" at
/// level debug, and faults of the store or of Millrace as warnings.
void ReplyError(fuse_req_t request, const char* operation, fuse_ino_t inode, const Error& error);
void ReplyStatus(fuse_req_t request, const char* operation, fuse_ino_t inode, const Status& status);
/// Replies with a name that the kernel looks up. If the caller is gone, takes its lookup back.
void ReplyEntry(fuse_req_t request, const vfs::CacheableAttributes& entry);

}  // namespace millrace::mount
