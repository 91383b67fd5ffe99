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
  auto entry = std::make_shared<Entry>();
  entry->work = std::move(work);
  Key key;
  {
    MutexLock lock(mutex_);
    key = {clock_.Now() + delay, next_number_++};
    bool first = entries_.empty() || key < entries_.begin()->first;
    entries_.emplace(key, entry);
    if (first) sleep_.request_stop();
  }
  arrived_.NotifyOne();
  // Without the lock: if the token has fired already, the constructor calls MakeDue, which takes it.
  if (stop.stop_possible()) entry->on_stop.emplace(stop, Hasten{this, key});
}

void Timers::MakeDue(Key key) {
  MutexLock lock(mutex_);
  auto found = entries_.find(key);
  if (found == entries_.end()) return;
  auto entry = std::move(found->second);
  entries_.erase(found);
  entries_.emplace(Key{TimePoint{}, key.second}, std::move(entry));
  sleep_.request_stop();
}

std::shared_ptr<Timers::Entry> Timers::Next() {
  MutexLock lock(mutex_);
  while (true) {
    if (entries_.empty()) {
      if (stopping_) return nullptr;
      arrived_.Wait(mutex_);
      continue;
    }
    auto first = entries_.begin();
    if (stopping_ || first->first.first <= clock_.Now()) {
      auto entry = std::move(first->second);
      entries_.erase(first);
      return entry;
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
  while (auto entry = Next()) std::exchange(entry->work, nullptr)();
}

}  // namespace millrace::object::s3
