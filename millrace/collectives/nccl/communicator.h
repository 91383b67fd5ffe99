// A communicator of NCCL that never blocks beyond its time limit.
#pragma once

#include <functional>
#include <memory>

#include "millrace/base/clock.h"
#include "millrace/base/result.h"
#include "millrace/base/threads/sync.h"
#include "millrace/collectives/nccl/nccl_api.h"

namespace millrace::collectives {

/// Owns a communicator. Thread-safe; Launch() by one thread at a time.
class Communicator {
 public:
  /// Connects this rank with the others, which have the same `id`. Blocks until all are there, `deadline`, or
  /// `gives_up` returns an error. Errors: kUnavailable; that error.
  static Result<std::shared_ptr<Communicator>> Connect(std::shared_ptr<NcclApi> api, const NcclId& id, int ranks,
                                                       int rank, TimePoint deadline, std::function<Status()> gives_up);
  /// Ends in order: other ranks may still read what this one has sent. Aborts if they do not come to their end in some
  /// seconds.
  ~Communicator();

  /// Gives the device an operation. Blocks until it has it, not until it is done: the first one connects the ranks.
  /// Errors: as Connect().
  Status Launch(const std::function<NcclResult(NcclApi& api, NcclHandle with)>& operation, TimePoint deadline)
      MR_EXCLUDES(mutex_);
  /// Returns what has gone wrong since: a lost network connection, for one.
  Status Look() MR_EXCLUDES(mutex_);
  /// Ends the operations under way, on this rank. All later calls fail.
  void Abort() MR_EXCLUDES(mutex_);

 private:
  Communicator(std::shared_ptr<NcclApi> api, NcclHandle handle, std::function<Status()> gives_up)
      : api_(std::move(api)), gives_up_(std::move(gives_up)), handle_(handle) {}
  /// Waits until a call that returned `result` is done.
  Status Await(NcclResult result, TimePoint deadline) MR_EXCLUDES(mutex_);
  Error ErrorOf(NcclResult result) const;

  const std::shared_ptr<NcclApi> api_;
  const std::function<Status()> gives_up_;
  Mutex mutex_;
  NcclHandle handle_ MR_GUARDED_BY(mutex_);  ///< null after Abort()
};

}  // namespace millrace::collectives
