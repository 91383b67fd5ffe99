// Keeps changes of files out while their names, or those of directories above them, are being changed.
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

/// Whoever changes what is in a file holds a Pass for its path. Whoever changes names, making or removing or moving
/// what they stand for, holds a Closure of them, which waits for passes and other closures and lets nobody in: a path
/// "a/b" is closed itself, a directory "a/b/" with all that is below. What somebody needs is taken at once, and nothing
/// while holding something, so nobody waits in a circle. Thread-safe.
class PathGate {
 public:
  /// A path whose file its holder may change, as others may. Movable; give it back before the gate goes.
  class Pass {
   public:
    Pass() = default;
    Pass(Pass&& other) noexcept : gate_(std::exchange(other.gate_, nullptr)), path_(std::move(other.path_)) {}
    Pass& operator=(Pass&&) = delete;
    ~Pass() {
      if (gate_) gate_->Leave(path_);
    }

   private:
    friend class PathGate;
    Pass(PathGate* gate, std::string path) : gate_(gate), path_(std::move(path)) {}
    PathGate* gate_ = nullptr;
    std::string path_;
  };

  /// Paths and directories in which only its holder changes anything. Likewise.
  class Closure {
   public:
    Closure() = default;
    Closure(Closure&& other) noexcept : gate_(std::exchange(other.gate_, nullptr)), paths_(std::move(other.paths_)) {}
    Closure& operator=(Closure&& other) noexcept {
      std::swap(gate_, other.gate_);
      std::swap(paths_, other.paths_);
      return *this;
    }
    ~Closure() {
      if (gate_) gate_->Open(paths_);
    }
    /// From now on whoever wants these paths is refused with kBusy and `reason`, and does not wait. So are those who
    /// wait now.
    void Refuse(const std::string& reason) {
      if (gate_) gate_->Refuse(paths_, reason);
    }

   private:
    friend class PathGate;
    Closure(PathGate* gate, std::vector<std::string> paths) : gate_(gate), paths_(std::move(paths)) {}
    PathGate* gate_ = nullptr;
    std::vector<std::string> paths_;
  };

  /// Both fail with kCancelled when `stop` fires before they may go on, and with kBusy where a closure refuses them.
  Result<Pass> Enter(std::string path, std::stop_token stop = {}) MR_EXCLUDES(mutex_);
  Result<Closure> Close(std::vector<std::string> paths, std::stop_token stop = {}) MR_EXCLUDES(mutex_);

 private:
  using Paths = std::multiset<std::string>;
  void Leave(const std::string& path) MR_EXCLUDES(mutex_);
  void Open(const std::vector<std::string>& paths) MR_EXCLUDES(mutex_);
  void Refuse(const std::vector<std::string>& paths, const std::string& reason) MR_EXCLUDES(mutex_);
  /// Waits until `paths` meet nothing that is closed.
  Status AwaitOpen(const std::vector<std::string>& paths, const std::stop_token& stop) MR_REQUIRES(mutex_);
  /// Why `paths` are refused; nothing when they are not.
  const std::string* FindRefusal(const std::vector<std::string>& paths) const MR_REQUIRES(mutex_);
  /// The first of `paths` that meets one of `others`; nothing when none does.
  static const std::string* FindMeeting(const std::vector<std::string>& paths, const Paths& others);

  Mutex mutex_;
  CondVar changed_;
  Paths passes_ MR_GUARDED_BY(mutex_), closed_ MR_GUARDED_BY(mutex_);
  std::map<std::string, std::string> refused_ MR_GUARDED_BY(mutex_);  ///< of those closed, with the reason
};

}  // namespace millrace::vfs
