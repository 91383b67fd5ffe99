// Runs work later, all of it on one thread.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <stop_token>
#include <thread>

#include "millrace/base/clock.h"
#include "millrace/base/threads/sync.h"

namespace millrace::object::s3 {

/// Thread-safe. Destruction runs the remaining work at once, then joins the thread.
class Timers {
 public:
  explicit Timers(Clock& clock);
  ~Timers();

  /// Runs `work` on the thread of the timers, after `delay` or as soon as `stop` fires. `work` must not block.
  void After(Duration delay, std::stop_token stop, std::move_only_function<void()> work) MR_EXCLUDES(mutex_);

 private:
  using Key = std::pair<TimePoint, std::uint64_t>;
  struct Hasten {
    Timers* timers;
    Key key;
    void operator()() const noexcept { timers->MakeDue(key); }
  };
  struct Timer {
    std::move_only_function<void()> work;
    std::optional<std::stop_callback<Hasten>> on_stop;
  };

  void MakeDue(Key key) MR_EXCLUDES(mutex_);
  void Run() MR_EXCLUDES(mutex_);
  /// The next timer to run. Sleeps until it is due. Null at destruction.
  std::shared_ptr<Timer> Next() MR_EXCLUDES(mutex_);

  Clock& clock_;
  Mutex mutex_;
  CondVar arrived_;
  std::map<Key, std::shared_ptr<Timer>> timers_ MR_GUARDED_BY(mutex_);
  std::uint64_t next_number_ MR_GUARDED_BY(mutex_) = 0;
  std::stop_source sleep_ MR_GUARDED_BY(mutex_);  ///< ends the current sleep when an earlier timer arrives
  bool stopping_ MR_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace millrace::object::s3
