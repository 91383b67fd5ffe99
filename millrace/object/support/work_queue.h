// The threads on which stores without a network run their calls.
#pragma once

#include <deque>
#include <functional>
#include <string>

#include "millrace/base/threads/sync.h"
#include "millrace/base/threads/task_scope.h"

namespace millrace::object {

/// Runs work on `threads` threads, in order of arrival. Submit never blocks, so completions may start further calls.
/// The queue is as long as the calls in flight, which the callers bound. Destruction runs the queued work (and the work
/// that it submits), then joins the threads; closing() is true meanwhile. Never destroy it from its own threads.
class WorkQueue {
 public:
  WorkQueue(std::string name, int threads);
  ~WorkQueue();
  void Submit(std::move_only_function<void()> work) MR_EXCLUDES(mutex_);
  bool closing() const MR_EXCLUDES(mutex_);

 private:
  void Run() MR_EXCLUDES(mutex_);

  mutable Mutex mutex_;
  CondVar ready_;
  std::deque<std::move_only_function<void()>> queue_ MR_GUARDED_BY(mutex_);
  int running_ MR_GUARDED_BY(mutex_) = 0;
  bool closing_ MR_GUARDED_BY(mutex_) = false;
  TaskScope threads_;
};

}  // namespace millrace::object
