// Threads that their owner joins, and a thread pool.
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

/// Owns threads. The destructor asks all of them to stop and joins them, so a task may use any object that outlives the
/// scope. Only the owner's thread may call Spawn, RequestStop and Join.
class TaskScope {
 public:
  TaskScope() = default;
  ~TaskScope();
  TaskScope(const TaskScope&) = delete;
  TaskScope& operator=(const TaskScope&) = delete;

  /// Runs `task` on a new thread. The system shows the first 15 bytes of `name`.
  void Spawn(std::string name, std::move_only_function<void(std::stop_token)> task);
  void RequestStop() { stop_.request_stop(); }
  std::stop_token stop_token() const { return stop_.get_token(); }
  /// Blocks until every task has returned. Does not ask them to stop.
  void Join();

 private:
  std::stop_source stop_;
  std::vector<std::thread> threads_;
};

/// A fixed number of worker threads with a bounded queue of work. The destructor runs the queued work, then joins.
class ThreadPool {
 public:
  ThreadPool(std::string name, int threads, std::size_t queue_capacity);
  ~ThreadPool();
  /// Queues `work`. Blocks while the queue is full. Any thread but a worker of this pool may call it.
  void Submit(std::move_only_function<void()> work);

 private:
  Channel<std::move_only_function<void()>> queue_;
  TaskScope workers_;
};

}  // namespace millrace
