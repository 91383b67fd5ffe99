// Threads with an owner that joins them.
#pragma once

#include <functional>
#include <memory>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "millrace/base/threads/channel.h"
#include "millrace/base/threads/sync.h"

namespace millrace {

/// Owns threads. Destruction asks all of them to stop and joins them, so a task may use whatever outlives the scope.
/// Spawn, RequestStop and Join are called by the owner's thread only.
class TaskScope {
 public:
  TaskScope() = default;
  ~TaskScope();
  TaskScope(const TaskScope&) = delete;
  TaskScope& operator=(const TaskScope&) = delete;

  /// Runs `task` on a thread of its own named `name` (15 bytes are shown by the system).
  void Spawn(std::string name, std::move_only_function<void(std::stop_token)> task);
  void RequestStop() { stop_.request_stop(); }
  std::stop_token stop_token() const { return stop_.get_token(); }
  /// Waits for every task to return; does not ask them to stop.
  void Join();

 private:
  std::stop_source stop_;
  std::vector<std::thread> threads_;
};

/// A fixed set of worker threads and a bounded queue of work. Destruction runs what is queued, then joins.
class ThreadPool {
 public:
  ThreadPool(std::string name, int threads, std::size_t queue_capacity);
  ~ThreadPool();
  /// Blocks while the queue is full. Any thread but a worker of this pool may call it.
  void Submit(std::move_only_function<void()> work);

 private:
  Channel<std::move_only_function<void()>> queue_;
  TaskScope workers_;
};

}  // namespace millrace
