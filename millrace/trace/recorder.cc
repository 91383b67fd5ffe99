#include "millrace/trace/recorder.h"

#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>

namespace millrace::trace {

std::string_view CategoryName(Category category) {
  static constexpr std::array<std::string_view, 8> kNames = {"step",      "pass",          "model", "kernel",
                                                             "optimizer", "communication", "data",  "checkpoint"};
  return kNames[static_cast<std::size_t>(category)];
}

thread_local constinit Recorder* ThreadScope::current_ = nullptr;

int Recorder::ThreadIndex() {
  const long number = ::syscall(SYS_gettid);
  const auto [at, added] = thread_index_.try_emplace(number, static_cast<int>(threads_.size()));
  if (added) {
    std::array<char, 16> name{};  // the size that the system's names have
    ::pthread_getname_np(::pthread_self(), name.data(), name.size());
    threads_.emplace_back(name.data());
  }
  return at->second;
}

void Recorder::Add(std::string name, Category category, TimePoint begin, TimePoint end, Json arguments) {
  if (!is_on()) return;
  MutexLock lock(mutex_);
  if (events_.size() >= most_events_) {
    ++dropped_;
    return;
  }
  events_.push_back({.name = std::move(name),
                     .category = category,
                     .thread = ThreadIndex(),
                     .begin = begin,
                     .end = end,
                     .arguments = std::move(arguments)});
}

void Recorder::NameThread(std::string name) {
  MutexLock lock(mutex_);
  threads_[static_cast<std::size_t>(ThreadIndex())] = std::move(name);
}

std::vector<TraceEvent> Recorder::events() const {
  MutexLock lock(mutex_);
  return events_;
}

std::vector<std::string> Recorder::threads() const {
  MutexLock lock(mutex_);
  return threads_;
}

std::uint64_t Recorder::dropped() const {
  MutexLock lock(mutex_);
  return dropped_;
}

}  // namespace millrace::trace
