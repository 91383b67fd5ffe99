// The in-flight table: the volumes or paths that calls are working on. Kubernetes repeats calls that take long while
// the first one still runs.
#pragma once

#include <set>
#include <string>
#include <utility>

#include "millrace/base/result.h"
#include "millrace/base/threads/sync.h"

namespace millrace::csi {

/// A set of names in use. Thread-safe. Must outlive its holds.
class InFlightTable {
 public:
  /// Holds a name until it is destroyed.
  class Hold {
   public:
    Hold(InFlightTable& owner, std::string name) : owner_(&owner), name_(std::move(name)) {}
    Hold(Hold&& other) noexcept : owner_(std::exchange(other.owner_, nullptr)), name_(std::move(other.name_)) {}
    Hold& operator=(Hold&&) = delete;
    ~Hold() {
      if (owner_ != nullptr) owner_->End(name_);
    }

   private:
    InFlightTable* owner_;
    std::string name_;
  };

  /// Never blocks. Errors: kBusy if the name is held.
  Result<Hold> Begin(const std::string& name) MR_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (!names_.insert(name).second) return Fail(Code::kBusy, "another call for {} is in progress", name);
    return Hold(*this, name);
  }

 private:
  void End(const std::string& name) MR_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    names_.erase(name);
  }
  Mutex mutex_;
  std::set<std::string> names_ MR_GUARDED_BY(mutex_);
};

}  // namespace millrace::csi
