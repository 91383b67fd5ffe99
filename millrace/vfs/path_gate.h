// Keeps changes below a directory out while that directory is being renamed.
#pragma once

#include <set>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "millrace/base/result.h"
#include "millrace/base/sync.h"

namespace millrace::vfs {

/// Whoever changes something at a path holds a Pass for it; whoever renames a directory holds a Closure of both its
/// names, which waits for the passes below them and lets nobody in. Passes for several paths are taken together, and
/// none is taken while holding another, so nobody waits in a circle. Thread-safe.
class PathGate {
 public:
  /// Paths that its holder may change. Movable; give it back before the gate goes.
  class Pass {
   public:
    Pass() = default;
    Pass(Pass&& other) noexcept : gate_(std::exchange(other.gate_, nullptr)), paths_(std::move(other.paths_)) {}
    Pass& operator=(Pass&& other) noexcept {
      std::swap(gate_, other.gate_);
      std::swap(paths_, other.paths_);
      return *this;
    }
    ~Pass() {
      if (gate_) gate_->LeavePass(paths_);
    }

   private:
    friend class PathGate;
    Pass(PathGate* gate, std::vector<std::string> paths) : gate_(gate), paths_(std::move(paths)) {}
    PathGate* gate_ = nullptr;
    std::vector<std::string> paths_;
  };

  /// Directories ("a/b/") below which only its holder changes anything. Likewise.
  class Closure {
   public:
    Closure(Closure&& other) noexcept : gate_(std::exchange(other.gate_, nullptr)), paths_(std::move(other.paths_)) {}
    Closure& operator=(Closure&&) = delete;
    ~Closure() {
      if (gate_) gate_->Open(paths_);
    }

   private:
    friend class PathGate;
    Closure(PathGate* gate, std::vector<std::string> paths) : gate_(gate), paths_(std::move(paths)) {}
    PathGate* gate_;
    std::vector<std::string> paths_;
  };

  /// Both fail with kCancelled when `stop` fires before they may go on.
  Result<Pass> Enter(std::vector<std::string> paths, std::stop_token stop = {}) MR_EXCLUDES(mutex_);
  Result<Closure> Close(std::vector<std::string> directories, std::stop_token stop = {}) MR_EXCLUDES(mutex_);

 private:
  using Paths = std::multiset<std::string>;
  void LeavePass(const std::vector<std::string>& paths) MR_EXCLUDES(mutex_);
  void Open(const std::vector<std::string>& directories) MR_EXCLUDES(mutex_);
  bool IsClosed(const std::vector<std::string>& paths) const MR_REQUIRES(mutex_);
  bool InUse(const std::vector<std::string>& directories) const MR_REQUIRES(mutex_);

  Mutex mutex_;
  CondVar changed_;
  Paths passes_ MR_GUARDED_BY(mutex_), closed_ MR_GUARDED_BY(mutex_);
};

}  // namespace millrace::vfs
