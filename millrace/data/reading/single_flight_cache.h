// A cache of values that are costly to make. However many threads want a value, one makes it and the others wait.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <stop_token>
#include <utility>

#include "millrace/base/result.h"
#include "millrace/base/threads/sync.h"

namespace millrace::data {

/// Evicts the least recently used values when the costs of all exceed `capacity`. A value lives on while a caller holds
/// it. A failure is returned to the thread that made the attempt; threads that waited for it try themselves. Any thread
/// may call any method.
template <class Key, class Value>
class SingleFlightCache {
 public:
  using Pointer = std::shared_ptr<const Value>;
  struct MadeValue {
    Pointer value;
    std::uint64_t cost = 0;
  };

  explicit SingleFlightCache(std::uint64_t capacity) : capacity_(capacity) {}

  /// Returns the value of `key`. Calls `make()`, which returns Result<MadeValue>, if it is not there. Blocks while
  /// another thread makes it. Errors: those of `make`; kCancelled if `stop` fires while it waits.
  template <class Make>
  Result<Pointer> Get(const Key& key, std::stop_token stop, Make make) MR_EXCLUDES(mutex_) {
    {
      MutexLock lock(mutex_);
      auto settled = [&]() MR_NO_THREAD_SAFETY_ANALYSIS {
        auto at = slots_.find(key);
        return at == slots_.end() || at->second.value != nullptr;
      };
      if (!changed_.Wait(mutex_, stop, settled)) return Fail(Code::kCancelled, "interrupted");
      auto [at, fresh] = slots_.try_emplace(key);
      if (!fresh) {
        recent_.splice(recent_.end(), recent_, at->second.place);
        return at->second.value;
      }
    }
    Result<MadeValue> made = make();
    MutexLock lock(mutex_);
    auto at = slots_.find(key);
    if (made) {
      at->second.value = made->value;
      at->second.cost = made->cost;
      at->second.place = recent_.insert(recent_.end(), at);
      used_ += made->cost;
      Evict();
    } else {
      slots_.erase(at);
    }
    lock.Unlock();
    changed_.NotifyAll();
    if (!made) return Fail(std::move(made).error());
    return std::move(made->value);
  }

  /// Returns true if Get would neither wait nor make the value.
  bool Ready(const Key& key) const MR_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    auto at = slots_.find(key);
    return at != slots_.end() && at->second.value != nullptr;
  }

  /// Returns true if the value is here or a thread makes it.
  bool Has(const Key& key) const MR_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return slots_.contains(key);
  }

 private:
  struct Slot;
  using Slots = std::map<Key, Slot>;
  struct Slot {
    Pointer value;  ///< null: a thread makes it, and it is not in recent_
    std::uint64_t cost = 0;
    typename std::list<typename Slots::iterator>::iterator place;
  };

  void Evict() MR_REQUIRES(mutex_) {
    while (used_ > capacity_ && !recent_.empty()) {
      auto oldest = recent_.front();
      recent_.pop_front();
      used_ -= oldest->second.cost;
      slots_.erase(oldest);
    }
  }

  const std::uint64_t capacity_;
  mutable Mutex mutex_;
  CondVar changed_;
  Slots slots_ MR_GUARDED_BY(mutex_);
  std::list<typename Slots::iterator> recent_ MR_GUARDED_BY(mutex_);  ///< least recently used first
  std::uint64_t used_ MR_GUARDED_BY(mutex_) = 0;
};

}  // namespace millrace::data
