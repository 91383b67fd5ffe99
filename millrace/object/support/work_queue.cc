#include "millrace/object/support/work_queue.h"

namespace millrace::object {

WorkQueue::WorkQueue(std::string name, int threads) {
  for (int i = 0; i < threads; ++i) threads_.Spawn(name, [this](std::stop_token) { Run(); });
}

WorkQueue::~WorkQueue() {
  {
    MutexLock lock(mutex_);
    closing_ = true;
  }
  ready_.NotifyAll();
  threads_.Join();
}

void WorkQueue::Submit(std::move_only_function<void()> work) {
  MutexLock lock(mutex_);
  queue_.push_back(std::move(work));
  lock.Unlock();
  ready_.NotifyOne();
}

bool WorkQueue::closing() const {
  MutexLock lock(mutex_);
  return closing_;
}

void WorkQueue::Run() {
  MutexLock lock(mutex_);
  for (;;) {
    // While closing, a thread ends only if no other work runs, because running work may submit more.
    while (queue_.empty() && !(closing_ && running_ == 0)) ready_.Wait(mutex_);
    if (queue_.empty()) return;
    std::move_only_function<void()> work = std::move(queue_.front());
    queue_.pop_front();
    ++running_;
    lock.Unlock();
    work();
    work = nullptr;  // destroys what it captured, before the queue may close
    lock.Lock();
    if (--running_ == 0 && closing_) ready_.NotifyAll();
  }
}

}  // namespace millrace::object
