// A FUSE session that another process can go on with. It keeps the kernel's first request, which comes only once, and
// the numbers of the requests that the kernel sends again.
#pragma once

#define FUSE_USE_VERSION 312
#include <fuse3/fuse_lowlevel.h>

#include <cstdint>
#include <deque>
#include <string>
#include <thread>

#include "millrace/base/result.h"
#include "millrace/base/threads/sync.h"

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

/// Serves one libfuse session, in place of libfuse's loop, which hides the numbers of requests. All threads
/// read from one descriptor: requests that were read through a clone end with the clone. Lives as long as the session.
class ResumableSession {
 public:
  /// For the mount of another process, whose descriptor is `device`: `session` takes it, if this succeeds.
  /// Errors: kInternal if libfuse refuses it.
  Status Resume(fuse_session* session, SessionStart start, int device);

  /// Serves INIT: the kernel's, or, after Resume, the one that the other process has answered. Call before Serve.
  /// Blocks until the kernel's has come. Errors: kIo if the mount has ended; those of reading.
  Status ServeInit(fuse_session* session);
  /// Makes the kernel send again what the other process had read. Call after ServeInit. Errors: those of the kernel.
  static Status RequestResend(fuse_session* session);
  /// Serves requests, up to `most_threads` at a time. Blocks until the mount has ended or Stop was called. Needs a
  /// handler of SIGUSR1: the signal interrupts the threads that wait for requests. Errors: those of reading requests;
  /// kUnavailable if no thread can be started.
  Status Serve(fuse_session* session, int most_threads) MR_EXCLUDES(mutex_);
  /// Ends Serve after the requests that have been read. From any thread.
  void Stop(fuse_session* session) MR_EXCLUDES(mutex_);

  SessionStart& start() { return start_; }
  bool resumed() const { return resumed_; }

 private:
  struct Worker {
    bool reads = false;  ///< it waits for a request
    std::jthread thread;
  };
  Status StartWorker(fuse_session* session) MR_REQUIRES(mutex_);
  void Work(fuse_session* session, Worker& worker) MR_EXCLUDES(mutex_);
  Status ServeRequests(fuse_session* session, Worker& worker) MR_EXCLUDES(mutex_);

  SessionStart start_;
  bool resumed_ = false;
  Mutex mutex_;
  CondVar changed_;
  std::deque<Worker> workers_ MR_GUARDED_BY(mutex_);  ///< they never move
  std::size_t most_workers_ MR_GUARDED_BY(mutex_) = 0;
  int running_ MR_GUARDED_BY(mutex_) = 0;  ///< workers that have not ended
  Status failed_ MR_GUARDED_BY(mutex_);    ///< the first failure of a worker
};

}  // namespace millrace::mount
