#include "millrace/object/s3/requests/timers.h"

namespace millrace::object::s3 {

Timers::Timers(Clock& clock) : clock_(clock), thread_([this] { Run(); }) {}

Timers::~Timers() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    sleep_.request_stop();
  }
  arrived_.NotifyAll();
  thread_.join();
}

void Timers::After(Duration delay, std::stop_token stop, std::move_only_function<void()> work) {
  auto timer = std::make_shared<Timer>();
  timer->work = std::move(work);
  Key key;
  {
    MutexLock lock(mutex_);
    key = {clock_.Now() + delay, next_number_++};
    bool first = timers_.empty() || key < timers_.begin()->first;
    timers_.emplace(key, timer);
    if (first) sleep_.request_stop();
  }
  arrived_.NotifyOne();
  // Without the lock: if the token has fired already, the constructor calls MakeDue, which takes it.
  if (stop.stop_possible()) timer->on_stop.emplace(stop, Hasten{this, key});
}

void Timers::MakeDue(Key key) {
  MutexLock lock(mutex_);
  auto found = timers_.find(key);
  if (found == timers_.end()) return;
  auto timer = std::move(found->second);
  timers_.erase(found);
  timers_.emplace(Key{TimePoint{}, key.second}, std::move(timer));
  sleep_.request_stop();
}

std::shared_ptr<Timers::Timer> Timers::Next() {
  MutexLock lock(mutex_);
  while (true) {
    if (timers_.empty()) {
      if (stopping_) return nullptr;
      arrived_.Wait(mutex_);
      continue;
    }
    auto first = timers_.begin();
    if (stopping_ || first->first.first <= clock_.Now()) {
      auto timer = std::move(first->second);
      timers_.erase(first);
      return timer;
    }
    sleep_ = std::stop_source();
    std::stop_token wake = sleep_.get_token();
    TimePoint due = first->first.first;
    lock.Unlock();
    clock_.SleepUntil(due, wake);
    lock.Lock();
  }
}

void Timers::Run() {
  while (auto timer = Next()) std::exchange(timer->work, nullptr)();
}

}  // namespace millrace::object::s3
