#include "millrace/vfs/names/path_gate.h"

namespace millrace::vfs {
namespace {

/// True when the two are one, or `path` is below the directory `above` ("a/b/"), or names it.
bool Covers(std::string_view above, std::string_view path) {
  if (!above.ends_with('/')) return path == above;
  return path.starts_with(above) || path == above.substr(0, above.size() - 1);
}

}  // namespace

const std::string* PathGate::FindMeeting(const std::vector<std::string>& paths, const Paths& others) {
  for (const std::string& other : others) {
    for (const std::string& path : paths) {
      if (Covers(other, path) || Covers(path, other)) return &path;
    }
  }
  return nullptr;
}

const std::string* PathGate::FindRefusal(const std::vector<std::string>& paths) const {
  for (const auto& [refused, reason] : refused_) {
    for (const std::string& path : paths) {
      if (Covers(refused, path) || Covers(path, refused)) return &reason;
    }
  }
  return nullptr;
}

Status PathGate::AwaitOpen(const std::vector<std::string>& paths, const std::stop_token& stop) {
  const bool decided = changed_.Wait(mutex_, stop, [&]() MR_REQUIRES(mutex_) {
    return FindRefusal(paths) != nullptr || FindMeeting(paths, closed_) == nullptr;
  });
  if (const std::string* reason = FindRefusal(paths)) return Fail(Code::kBusy, "{}", *reason);
  if (!decided) return Fail(Code::kCancelled, "{} is being renamed or removed", *FindMeeting(paths, closed_));
  return {};
}

Result<PathGate::Pass> PathGate::Enter(std::string path, std::stop_token stop) {
  MutexLock lock(mutex_);
  MR_TRY(AwaitOpen({path}, stop));
  passes_.insert(path);
  return Pass(this, std::move(path));
}

Result<PathGate::Closure> PathGate::Close(std::vector<std::string> paths, std::stop_token stop) {
  MutexLock lock(mutex_);
  MR_TRY(AwaitOpen(paths, stop));
  closed_.insert(paths.begin(), paths.end());
  Closure closure(this, std::move(paths));
  // Nobody comes in any more; those who are in have yet to leave.
  if (changed_.Wait(mutex_, stop, [&]() MR_REQUIRES(mutex_) { return !FindMeeting(closure.paths_, passes_); })) {
    return closure;
  }
  const std::string busy = *FindMeeting(closure.paths_, passes_);
  lock.Unlock();  // for the closure, which goes
  return Fail(Code::kCancelled, "{} is being changed", busy);
}

void PathGate::Leave(const std::string& path) {
  MutexLock lock(mutex_);
  passes_.erase(passes_.find(path));
  changed_.NotifyAll();
}

void PathGate::Open(const std::vector<std::string>& paths) {
  MutexLock lock(mutex_);
  for (const std::string& path : paths) {
    closed_.erase(closed_.find(path));
    refused_.erase(path);
  }
  changed_.NotifyAll();
}

void PathGate::Refuse(const std::vector<std::string>& paths, const std::string& reason) {
  MutexLock lock(mutex_);
  for (const std::string& path : paths) refused_[path] = reason;
  changed_.NotifyAll();
}

}  // namespace millrace::vfs
