// What every FUSE request handler needs: cancellation by dying callers, conversion of attributes, errors.
#pragma once

#define FUSE_USE_VERSION 312
#include <fuse3/fuse_lowlevel.h>

#include <functional>
#include <optional>
#include <stop_token>

#include "apps/millrace/mount_fuse.h"
#include "millrace/object/store.h"

namespace millrace::mount {

/// What all handlers work on: the session's user data.
struct RequestContext {
  vfs::Tree& tree;
  const FuseOptions options;
  std::stop_source ended;  ///< the mount has: nobody waits for a reply any more
  static RequestContext& Of(fuse_req_t request) { return *static_cast<RequestContext*>(fuse_req_userdata(request)); }
};

/// Ends the wait of one request when the process behind it is being killed, or the mount has ended. Other signals do
/// not: a read that fails with EINTR surprises most programs. Lives on the handler's stack, and is gone before the
/// reply.
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

/// The process (not the thread) that sent the request; 0 when it cannot be told.
pid_t ProcessOf(fuse_req_t request);

mode_t TypeOf(vfs::Kind kind);  ///< as in st_mode
struct stat ToStat(const vfs::Attributes& attributes);
fuse_entry_param ToEntry(const vfs::Entry& entry);
double Seconds(Duration duration);

/// Writes the reason to the log (faults of the store and of ours as warnings, answers such as "not found" as debug) and
/// gives the errno for the reply.
int Explain(const FuseOptions& options, const char* operation, fuse_ino_t inode, const Error& error);

}  // namespace millrace::mount
