// Renames whose end the store has not confirmed: ends them in the background.
#pragma once

#include <functional>
#include <list>
#include <memory>
#include <stop_token>
#include <string>
#include <thread>

#include "millrace/base/clock.h"
#include "millrace/base/threads/sync.h"
#include "millrace/vfs/rename/rename_lease.h"
#include "millrace/vfs/types/options.h"
#include "millrace/vfs/types/path_lock.h"

namespace millrace::vfs {

/// Ends renames as soon as the store answers. Undoes a rename whose caller got an error; finishes a rename whose caller
/// got success. Until then both names stay locked: PathLock refuses changes of them with kBusy. Pauses 1 s, 2 s, up to
/// 15 s between attempts. Gives up a rename if another attempt cannot help, for example if the user may not delete; its
/// record then stays for the next mount. So do the records of renames that are open when the settler is destroyed.
/// Thread-safe. The thread starts with the first rename.
class RenameSettler {
 public:
  /// Calls `on_settled` for each rename that has ended. What is cached of both names is then out of date.
  RenameSettler(object::Store& store, const TreeOptions& options, std::function<void(const RenameRecord&)> on_settled);
  ~RenameSettler();

  /// Takes over a rename, with the lock of both names. `reason`: the error that left its end open.
  void Add(std::unique_ptr<RenameLease> lease, PathLock::ExclusiveLock names_lock, const Error& reason)
      MR_EXCLUDES(mutex_);
  /// Tries to end each rename once, now. Blocks. Renames that fail stay.
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
  Mutex trying_;  ///< held during attempts, so that one thread tries at a time; locked before mutex_
  Mutex mutex_;
  CondVar changed_;
  std::list<OpenRename> renames_ MR_GUARDED_BY(mutex_);  ///< only the holder of trying_ removes elements
  std::jthread thread_ MR_GUARDED_BY(mutex_);
};

}  // namespace millrace::vfs
