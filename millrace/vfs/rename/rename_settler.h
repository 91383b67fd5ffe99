// Ends renames in the background whose end the store has not confirmed.
#pragma once

#include <functional>
#include <list>
#include <memory>
#include <stop_token>
#include <string>
#include <thread>

#include "millrace/base/clock.h"
#include "millrace/base/threads/sync.h"
#include "millrace/vfs/names/path_lock.h"
#include "millrace/vfs/rename/rename_lease.h"
#include "millrace/vfs/types/options.h"

namespace millrace::vfs {

/// Ends renames as soon as the store answers. A rename whose caller got an error is undone; a rename whose caller got
/// success is finished. Until then both names stay locked: PathLock refuses changes of them with kBusy. Tries after 1
/// s, 2 s, … 15 s. Gives up only where trying again is of no use (no right to delete); the record then stays for the
/// next mount. Thread-safe. Its thread starts with the first rename and ends with the settler; what is open then is
/// left to the next mount.
class RenameSettler {
 public:
  /// Calls `on_settled` for each rename that has ended: what is cached of both names is out of date.
  RenameSettler(object::Store& store, const TreeOptions& options, std::function<void(const RenameRecord&)> on_settled);
  ~RenameSettler();

  /// Takes over a rename, with the lock of both names. `reason`: why its end is open.
  void Add(std::unique_ptr<RenameLease> lease, PathLock::ExclusiveLock names_lock, const Error& reason)
      MR_EXCLUDES(mutex_);
  /// Tries all of them once, now. Blocks. Those that fail stay.
  void TryAll(const object::Call& call) MR_EXCLUDES(mutex_, trying_);

 private:
  struct OpenRename {
    std::unique_ptr<RenameLease> lease;
    PathLock::ExclusiveLock names_lock;
    TimePoint due;
    Duration pause;
  };
  void Run(const std::stop_token& stop) MR_EXCLUDES(mutex_);
  void TryDue(TimePoint now, const object::Call& call) MR_EXCLUDES(mutex_, trying_);
  Status Try(OpenRename& rename, const object::Call& call);
  bool IsOver(OpenRename& rename, const Status& tried);

  object::Store& store_;
  const TreeOptions& options_;
  const std::function<void(const RenameRecord&)> on_settled_;
  Mutex trying_;  ///< held while the store is asked, so that one thread tries at a time; locked before mutex_
  Mutex mutex_;
  CondVar changed_;
  std::list<OpenRename> renames_ MR_GUARDED_BY(mutex_);  ///< removed by whoever holds trying_
  std::jthread thread_ MR_GUARDED_BY(mutex_);
};

}  // namespace millrace::vfs
