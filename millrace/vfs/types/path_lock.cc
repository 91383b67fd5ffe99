#include "millrace/vfs/types/path_lock.h"

namespace millrace::vfs {
namespace {

/// Returns true if both are the same, or `above` is a directory ("a/b/") and `path` is this directory or below it.
bool Covers(std::string_view above, std::string_view path) {
  if (!above.ends_with('/')) return path == above;
  return path.starts_with(above) || path == above.substr(0, above.size() - 1);
}

}  // namespace

const std::string* PathLock::FindOverlap(const std::vector<std::string>& paths, const Paths& others) {
  for (const std::string& other : others) {
    for (const std::string& path : paths) {
      if (Covers(other, path) || Covers(path, other)) return &path;
    }
  }
  return nullptr;
}

const std::string* PathLock::FindRefusal(const std::vector<std::string>& paths) const {
  for (const auto& [refused, reason] : refused_) {
    for (const std::string& path : paths) {
      if (Covers(refused, path) || Covers(path, refused)) return &reason;
    }
  }
  return nullptr;
}

Status PathLock::AwaitNoExclusive(const std::vector<std::string>& paths, const std::stop_token& stop) {
  const bool decided = changed_.Wait(mutex_, stop, [&]() MR_REQUIRES(mutex_) {
    return FindRefusal(paths) != nullptr || FindOverlap(paths, exclusive_) == nullptr;
  });
  if (const std::string* reason = FindRefusal(paths)) return Fail(Code::kBusy, "{}", *reason);
  if (!decided) return Fail(Code::kCancelled, "{} is being renamed or removed", *FindOverlap(paths, exclusive_));
  return {};
}

Result<PathLock::SharedLock> PathLock::LockShared(std::string path, std::stop_token stop) {
  MutexLock lock(mutex_);
  MR_TRY(AwaitNoExclusive({path}, stop));
  shared_.insert(path);
  return SharedLock(this, std::move(path));
}

Result<PathLock::ExclusiveLock> PathLock::LockExclusive(std::vector<std::string> paths, std::stop_token stop) {
  MutexLock lock(mutex_);
  MR_TRY(AwaitNoExclusive(paths, stop));
  exclusive_.insert(paths.begin(), paths.end());
  ExclusiveLock exclusive(this, std::move(paths));
  // New shared locks now wait. Wait until the present ones are unlocked.
  if (changed_.Wait(mutex_, stop, [&]() MR_REQUIRES(mutex_) { return !FindOverlap(exclusive.paths_, shared_); })) {
    return exclusive;
  }
  const std::string busy = *FindOverlap(exclusive.paths_, shared_);
  lock.Unlock();  // for the destructor of `exclusive`
  return Fail(Code::kCancelled, "{} is being changed", busy);
}

void PathLock::UnlockShared(const std::string& path) {
  MutexLock lock(mutex_);
  shared_.erase(shared_.find(path));
  changed_.NotifyAll();
}

void PathLock::UnlockExclusive(const std::vector<std::string>& paths) {
  MutexLock lock(mutex_);
  for (const std::string& path : paths) {
    exclusive_.erase(exclusive_.find(path));
    refused_.erase(path);
  }
  changed_.NotifyAll();
}

void PathLock::Refuse(const std::vector<std::string>& paths, const std::string& reason) {
  MutexLock lock(mutex_);
  for (const std::string& path : paths) refused_[path] = reason;
  changed_.NotifyAll();
}

}  // namespace millrace::vfs
