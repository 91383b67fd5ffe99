// The in-flight table: the volumes or paths that calls are working on. Kubernetes repeats calls that take long while
// the first one still runs.
#pragma once

#include <map>
#include <string>
#include <utility>

#include "millrace/base/result.h"
#include "millrace/base/threads/sync.h"

namespace millrace::csi {

/// A table of names in use. A name has one exclusive hold, or any number of shared ones. Thread-safe. Must outlive its
/// holds.
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

  /// An exclusive hold. Never blocks. Errors: kBusy if the name is held.
  Result<Hold> Begin(const std::string& name) MR_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (!names_.try_emplace(name, kExclusive).second) return Busy(name);
    return Hold(*this, name);
  }
  /// A shared hold. Never blocks. Errors: kBusy if the name is held exclusively.
  Result<Hold> BeginShared(const std::string& name) MR_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    int& holds = names_[name];
    if (holds == kExclusive) return Busy(name);
    ++holds;
    return Hold(*this, name);
  }

 private:
  void End(const std::string& name) MR_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    const auto held = names_.find(name);
    if (held->second != kExclusive) --held->second;
    if (held->second <= 0) names_.erase(held);
  }
  static std::unexpected<Error> Busy(const std::string& name) {
    return Fail(Code::kBusy, "another call for {} is in progress", name);
  }
  static constexpr int kExclusive = -1;
  Mutex mutex_;
  std::map<std::string, int> names_ MR_GUARDED_BY(mutex_);  ///< the number of shared holds, or kExclusive
};

}  // namespace millrace::csi
