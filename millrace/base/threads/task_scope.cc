#include "millrace/base/threads/task_scope.h"

#include <pthread.h>

namespace millrace {

TaskScope::~TaskScope() {
  RequestStop();
  Join();
}

void TaskScope::Spawn(std::string name, std::move_only_function<void(std::stop_token)> task) {
  name.resize(std::min<std::size_t>(name.size(), 15));
  threads_.emplace_back([name = std::move(name), task = std::move(task), stop = stop_.get_token()]() mutable {
    pthread_setname_np(pthread_self(), name.c_str());
    task(stop);
  });
}

void TaskScope::Join() {
  for (std::thread& thread : threads_)
    if (thread.joinable()) thread.join();
  threads_.clear();
}

ThreadPool::ThreadPool(std::string name, int threads, std::size_t queue_capacity) : queue_(queue_capacity) {
  for (int i = 0; i < threads; ++i)
    workers_.Spawn(name, [this](std::stop_token) {
      while (auto work = queue_.Pop()) (*work)();
    });
}

ThreadPool::~ThreadPool() {
  queue_.Close();
  workers_.Join();
}

void ThreadPool::Submit(std::move_only_function<void()> work) { queue_.Push(std::move(work)); }

}  // namespace millrace
