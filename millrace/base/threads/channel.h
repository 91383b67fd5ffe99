// A bounded queue between threads.
#pragma once

#include <deque>
#include <optional>
#include <stop_token>
#include <utility>

#include "millrace/base/threads/sync.h"

namespace millrace {

/// Multi-producer, multi-consumer queue of at most `capacity` items. Any thread may call any method. Push and Pop
/// block; both give up when their stop token fires or the channel is closed.
template <class T>
class Channel {
 public:
  explicit Channel(std::size_t capacity) : capacity_(capacity) {}

  /// False if the channel was closed or `stop` fired; the item is then gone.
  bool Push(T item, std::stop_token stop = {}) MR_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    space_.Wait(mutex_, stop, [this]() MR_NO_THREAD_SAFETY_ANALYSIS { return closed_ || items_.size() < capacity_; });
    if (closed_ || items_.size() >= capacity_) return false;
    items_.push_back(std::move(item));
    lock.Unlock();
    ready_.NotifyOne();
    return true;
  }

  bool TryPush(T& item) MR_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (closed_ || items_.size() >= capacity_) return false;
    items_.push_back(std::move(item));
    lock.Unlock();
    ready_.NotifyOne();
    return true;
  }

  /// Nothing once the channel is closed and drained, or `stop` fired while it was empty.
  std::optional<T> Pop(std::stop_token stop = {}) MR_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    ready_.Wait(mutex_, stop, [this]() MR_NO_THREAD_SAFETY_ANALYSIS { return closed_ || !items_.empty(); });
    return Take(lock);
  }

  std::optional<T> TryPop() MR_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return Take(lock);
  }

  /// No more pushes; consumers drain what is there.
  void Close() MR_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    closed_ = true;
    lock.Unlock();
    space_.NotifyAll();
    ready_.NotifyAll();
  }

  std::size_t size() const MR_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return items_.size();
  }

 private:
  std::optional<T> Take(MutexLock& lock) MR_NO_THREAD_SAFETY_ANALYSIS {
    if (items_.empty()) return std::nullopt;
    std::optional<T> item(std::move(items_.front()));
    items_.pop_front();
    lock.Unlock();
    space_.NotifyOne();
    return item;
  }

  const std::size_t capacity_;
  mutable Mutex mutex_;
  CondVar space_, ready_;
  std::deque<T> items_ MR_GUARDED_BY(mutex_);
  bool closed_ MR_GUARDED_BY(mutex_) = false;
};

}  // namespace millrace
