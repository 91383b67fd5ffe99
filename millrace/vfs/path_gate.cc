#include "millrace/vfs/path_gate.h"

namespace millrace::vfs {
namespace {

/// True when `path` is below `directory` ("a/b/"), or names it.
bool Covers(std::string_view directory, std::string_view path) {
  return path.starts_with(directory) || path == directory.substr(0, directory.size() - 1);
}

}  // namespace

bool PathGate::IsClosed(const std::vector<std::string>& paths) const {
  for (const std::string& closed : closed_) {
    for (const std::string& path : paths) {
      if (Covers(closed, path) || (path.ends_with('/') && Covers(path, closed))) return true;
    }
  }
  return false;
}

bool PathGate::InUse(const std::vector<std::string>& directories) const {
  for (const std::string& path : passes_) {
    for (const std::string& directory : directories) {
      if (Covers(directory, path)) return true;
    }
  }
  return false;
}

Result<PathGate::Pass> PathGate::Enter(std::vector<std::string> paths, std::stop_token stop) {
  MutexLock lock(mutex_);
  while (IsClosed(paths)) {
    if (stop.stop_requested()) return Fail(Code::kCancelled, "{} is being renamed", paths.front());
    changed_.Wait(mutex_, stop, [&]() MR_REQUIRES(mutex_) { return !IsClosed(paths); });
  }
  passes_.insert(paths.begin(), paths.end());
  return Pass(this, std::move(paths));
}

Result<PathGate::Closure> PathGate::Close(std::vector<std::string> directories, std::stop_token stop) {
  MutexLock lock(mutex_);
  while (IsClosed(directories)) {
    if (stop.stop_requested()) return Fail(Code::kCancelled, "{} is being renamed", directories.front());
    changed_.Wait(mutex_, stop, [&]() MR_REQUIRES(mutex_) { return !IsClosed(directories); });
  }
  closed_.insert(directories.begin(), directories.end());
  while (InUse(directories)) changed_.Wait(mutex_);
  return Closure(this, std::move(directories));
}

void PathGate::LeavePass(const std::vector<std::string>& paths) {
  MutexLock lock(mutex_);
  for (const std::string& path : paths) passes_.erase(passes_.find(path));
  changed_.NotifyAll();
}

void PathGate::Open(const std::vector<std::string>& directories) {
  MutexLock lock(mutex_);
  for (const std::string& directory : directories) closed_.erase(closed_.find(directory));
  changed_.NotifyAll();
}

}  // namespace millrace::vfs
