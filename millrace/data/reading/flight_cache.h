// Values that are costly to make: made once however many threads want them, and kept while there is room.
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

/// Keeps the least recently used values out once their costs exceed `capacity`; what callers still hold lives on. A
/// failure is nobody's but the maker's: the threads that waited for it try themselves. Any thread may call any method.
template <class Key, class Value>
class FlightCache {
 public:
  using Pointer = std::shared_ptr<const Value>;
  struct Made {
    Pointer value;
    std::uint64_t cost = 0;
  };

  explicit FlightCache(std::uint64_t capacity) : capacity_(capacity) {}

  /// The value of `key`, from `make()` -> Result<Made> if need be. Blocks while another thread makes it.
  template <class Make>
  Result<Pointer> Get(const Key& key, std::stop_token stop, Make make) MR_EXCLUDES(mutex_) {
    {
      MutexLock lock(mutex_);
      auto settled = [&]() MR_NO_THREAD_SAFETY_ANALYSIS {
        auto at = entries_.find(key);
        return at == entries_.end() || at->second.value != nullptr;
      };
      if (!changed_.Wait(mutex_, stop, settled)) return Fail(Code::kCancelled, "interrupted");
      auto [at, fresh] = entries_.try_emplace(key);
      if (!fresh) {
        recent_.splice(recent_.end(), recent_, at->second.place);
        return at->second.value;
      }
    }
    Result<Made> made = make();
    MutexLock lock(mutex_);
    auto at = entries_.find(key);
    if (made) {
      at->second.value = made->value;
      at->second.cost = made->cost;
      at->second.place = recent_.insert(recent_.end(), at);
      used_ += made->cost;
      Evict();
    } else {
      entries_.erase(at);
    }
    lock.Unlock();
    changed_.NotifyAll();
    if (!made) return Fail(std::move(made).error());
    return std::move(made->value);
  }

  /// True if Get would not wait.
  bool Ready(const Key& key) const MR_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    auto at = entries_.find(key);
    return at != entries_.end() && at->second.value != nullptr;
  }

  /// True if the value is here or on its way.
  bool Has(const Key& key) const MR_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return entries_.contains(key);
  }

 private:
  struct Entry;
  using Entries = std::map<Key, Entry>;
  struct Entry {
    Pointer value;  ///< null: on its way, and not in recent_
    std::uint64_t cost = 0;
    typename std::list<typename Entries::iterator>::iterator place;
  };

  void Evict() MR_REQUIRES(mutex_) {
    while (used_ > capacity_ && !recent_.empty()) {
      auto oldest = recent_.front();
      recent_.pop_front();
      used_ -= oldest->second.cost;
      entries_.erase(oldest);
    }
  }

  const std::uint64_t capacity_;
  mutable Mutex mutex_;
  CondVar changed_;
  Entries entries_ MR_GUARDED_BY(mutex_);
  std::list<typename Entries::iterator> recent_ MR_GUARDED_BY(mutex_);  ///< least recently used first
  std::uint64_t used_ MR_GUARDED_BY(mutex_) = 0;
};

}  // namespace millrace::data
