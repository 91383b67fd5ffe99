// Locks on paths: a change of a file's content excludes changes of its name.
#pragma once

#include <map>
#include <set>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "millrace/base/result.h"
#include "millrace/base/threads/sync.h"

namespace millrace::vfs {

/// A reader–writer lock on paths. The holder of a SharedLock of a path may change the content of its file; several
/// threads may hold one. The holder of an ExclusiveLock may create, remove and rename its paths; it excludes all other
/// locks of them. A path "a/b" covers that name only, a path "a/b/" the directory and everything below.
///
/// A caller locks all paths that it needs in one call, and takes no lock while it holds one. So there is no deadlock.
/// Thread-safe. The PathLock must outlive its locks.
class PathLock {
 public:
  /// A lock of one path, or of nothing. Movable. The destructor unlocks.
  class SharedLock {
   public:
    SharedLock() = default;
    SharedLock(SharedLock&& other) noexcept
        : owner_(std::exchange(other.owner_, nullptr)), path_(std::move(other.path_)) {}
    SharedLock& operator=(SharedLock&&) = delete;
    ~SharedLock() {
      if (owner_) owner_->UnlockShared(path_);
    }

   private:
    friend class PathLock;
    SharedLock(PathLock* owner, std::string path) : owner_(owner), path_(std::move(path)) {}
    PathLock* owner_ = nullptr;
    std::string path_;
  };

  /// A lock of several paths, or of nothing. Movable. The destructor unlocks.
  class ExclusiveLock {
   public:
    ExclusiveLock() = default;
    ExclusiveLock(ExclusiveLock&& other) noexcept
        : owner_(std::exchange(other.owner_, nullptr)), paths_(std::move(other.paths_)) {}
    ExclusiveLock& operator=(ExclusiveLock&& other) noexcept {
      std::swap(owner_, other.owner_);
      std::swap(paths_, other.paths_);
      return *this;
    }
    ~ExclusiveLock() {
      if (owner_) owner_->UnlockExclusive(paths_);
    }
    /// From now on, calls that wait for this lock fail with kBusy and `reason`.
    void Refuse(const std::string& reason) {
      if (owner_) owner_->Refuse(paths_, reason);
    }

   private:
    friend class PathLock;
    ExclusiveLock(PathLock* owner, std::vector<std::string> paths) : owner_(owner), paths_(std::move(paths)) {}
    PathLock* owner_ = nullptr;
    std::vector<std::string> paths_;
  };

  /// Both block until the paths are free. Errors: kCancelled if `stop` fires first; kBusy if the holder of an
  /// ExclusiveLock refuses.
  Result<SharedLock> LockShared(std::string path, std::stop_token stop = {}) MR_EXCLUDES(mutex_);
  Result<ExclusiveLock> LockExclusive(std::vector<std::string> paths, std::stop_token stop = {}) MR_EXCLUDES(mutex_);

 private:
  using Paths = std::multiset<std::string>;
  void UnlockShared(const std::string& path) MR_EXCLUDES(mutex_);
  void UnlockExclusive(const std::vector<std::string>& paths) MR_EXCLUDES(mutex_);
  void Refuse(const std::vector<std::string>& paths, const std::string& reason) MR_EXCLUDES(mutex_);
  /// Waits until no exclusive lock covers any of `paths`.
  Status AwaitNoExclusive(const std::vector<std::string>& paths, const std::stop_token& stop) MR_REQUIRES(mutex_);
  /// Returns the reason why `paths` are refused, or null.
  const std::string* FindRefusal(const std::vector<std::string>& paths) const MR_REQUIRES(mutex_);
  /// Returns the first of `paths` that overlaps with one of `others`, or null.
  static const std::string* FindOverlap(const std::vector<std::string>& paths, const Paths& others);

  // Guarded by mutex_.
  Mutex mutex_;
  CondVar changed_;
  Paths shared_ MR_GUARDED_BY(mutex_), exclusive_ MR_GUARDED_BY(mutex_);
  std::map<std::string, std::string> refused_ MR_GUARDED_BY(mutex_);  ///< exclusive paths, with the reason
};

}  // namespace millrace::vfs
