// A bounded queue between threads.
#pragma once

#include <deque>
#include <optional>
#include <stop_token>
#include <utility>

#include "millrace/base/threads/sync.h"

namespace millrace {

/// A multi-producer, multi-consumer queue of at most `capacity` items. Thread-safe. Push and Pop block until they can
/// proceed, their stop token fires or the channel is closed.
template <class T>
class Channel {
 public:
  explicit Channel(std::size_t capacity) : capacity_(capacity) {}

  /// Blocks while the queue is full. Returns false if the channel is closed or `stop` fires; the item is then lost.
  bool Push(T item, std::stop_token stop = {}) MR_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    space_.Wait(mutex_, stop, [this]() MR_NO_THREAD_SAFETY_ANALYSIS { return closed_ || items_.size() < capacity_; });
    if (closed_ || items_.size() >= capacity_) return false;
    items_.push_back(std::move(item));
    lock.Unlock();
    ready_.NotifyOne();
    return true;
  }

  /// Moves `item` into the queue. Returns false, and leaves `item` alone, if the queue is full or closed. Never blocks.
  bool TryPush(T& item) MR_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (closed_ || items_.size() >= capacity_) return false;
    items_.push_back(std::move(item));
    lock.Unlock();
    ready_.NotifyOne();
    return true;
  }

  /// Blocks while the queue is empty. Returns nothing if the channel is closed and empty, or if `stop` fires while it
  /// is empty.
  std::optional<T> Pop(std::stop_token stop = {}) MR_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    ready_.Wait(mutex_, stop, [this]() MR_NO_THREAD_SAFETY_ANALYSIS { return closed_ || !items_.empty(); });
    return Take(lock);
  }

  /// Returns nothing if the queue is empty. Never blocks.
  std::optional<T> TryPop() MR_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return Take(lock);
  }

  /// Makes every later push fail. Consumers still get the items that are in the queue.
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

  const std::size_t capacity_;  // at least 1, or Push blocks forever
  mutable Mutex mutex_;
  CondVar space_, ready_;
  std::deque<T> items_ MR_GUARDED_BY(mutex_);
  bool closed_ MR_GUARDED_BY(mutex_) = false;
};

}  // namespace millrace
