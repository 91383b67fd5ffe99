#include "millrace/vfs/write/publisher.h"

#include <algorithm>
#include <vector>

namespace millrace::vfs {

Publisher::Publisher(Options options, Clock& clock, Attempt attempt, Finished finished)
    : options_(options),
      clock_(clock),
      attempt_(std::move(attempt)),
      finished_(std::move(finished)),
      workers_("publish", options.parallel) {
  scheduler_.Spawn("publish-time", [this](const std::stop_token& stop) { Schedule(stop); });
}

Publisher::~Publisher() {
  scheduler_.RequestStop();
  scheduler_.Join();
  stop_.request_stop();
}

Result<bool> Publisher::Add(const InodePtr& inode, Duration delay) {
  MutexLock lock(mutex_);
  auto found = items_.find(inode->id);
  if (found != items_.end()) {
    Item& item = found->second;
    item.again = item.running;
    return false;
  }
  if (items_.size() >= options_.most) return Fail(Code::kResourceExhausted, "{} files wait already", items_.size());
  const TimePoint due = clock_.Now() + delay;
  items_[inode->id] = {.inode = inode, .due = due, .error = {}};
  WakeFor(due);
  return true;
}

bool Publisher::Waits(const Inode& inode) const {
  MutexLock lock(mutex_);
  return items_.contains(inode.id);
}

Status Publisher::Flush(const object::Call& call) {
  MutexLock lock(mutex_);
  for (auto& [id, item] : items_) {
    item.flushing = true;
    item.again = item.running;
    item.due = std::min(item.due, clock_.Now());
  }
  WakeFor(clock_.Now());
  auto done = [this]() MR_REQUIRES(mutex_) {
    return std::ranges::none_of(items_, [](const auto& each) { return each.second.flushing; });
  };
  const bool in_time = call.deadline.infinite() ? changed_.Wait(mutex_, call.stop, done)
                                                : changed_.WaitUntil(mutex_, call.deadline.at(), call.stop, done);
  for (const auto& [id, item] : items_) {
    if (item.error) return Fail(*item.error);
  }
  if (in_time) return {};
  return Fail(Code::kDeadlineExceeded, "{} files could not be published in time", items_.size());
}

bool Publisher::AwaitProgress(const object::Call& call) {
  MutexLock lock(mutex_);
  auto hopeful = [this]() MR_REQUIRES(mutex_) {
    return std::ranges::any_of(items_, [](const auto& each) { return each.second.failures == 0; });
  };
  if (!hopeful()) return false;
  for (auto& [id, item] : items_) {
    if (item.failures == 0) item.due = std::min(item.due, clock_.Now());
  }
  WakeFor(clock_.Now());
  const std::uint64_t before = done_;
  auto progress = [&]() MR_REQUIRES(mutex_) { return done_ != before || !hopeful(); };
  if (call.deadline.infinite()) {
    changed_.Wait(mutex_, call.stop, progress);
  } else {
    changed_.WaitUntil(mutex_, call.deadline.at(), call.stop, progress);
  }
  return done_ != before;
}

Publisher::Stats Publisher::stats() const {
  MutexLock lock(mutex_);
  Stats stats{.waiting = static_cast<int>(items_.size()), .failures = failures_, .error = {}};
  int most = 0;
  for (const auto& [id, item] : items_) {
    stats.failing += item.failures > 0;
    if (item.failures <= most) continue;
    most = item.failures;
    stats.error = item.error;
  }
  return stats;
}

Duration Publisher::RetryDelay(int failures) const {
  return std::min<Duration>(options_.longest_retry, options_.first_retry * (1LL << std::min(failures - 1, 20)));
}

/// Has the scheduler look by then.
void Publisher::WakeFor(TimePoint due) {
  if (due >= next_look_) return;
  next_look_ = due;
  sleep_.request_stop();
  changed_.NotifyAll();
}

void Publisher::Schedule(const std::stop_token& stop) {
  std::stop_callback wake(stop, [this] {
    MutexLock lock(mutex_);
    WakeFor(TimePoint::min());
  });
  MutexLock lock(mutex_);
  while (!stop.stop_requested()) {
    sleep_ = std::stop_source();
    const TimePoint next = next_look_ = StartDue();
    if (next == TimePoint::max()) {
      changed_.Wait(mutex_, stop, [this]() MR_REQUIRES(mutex_) { return next_look_ != TimePoint::max(); });
    } else {
      const std::stop_token token = sleep_.get_token();
      lock.Unlock();
      clock_.SleepUntil(next, token);
      lock.Lock();
    }
  }
}

/// Hands what is due to the workers; when to look again.
TimePoint Publisher::StartDue() {
  const TimePoint now = clock_.Now();
  TimePoint next = TimePoint::max();
  std::vector<std::pair<TimePoint, InodeId>> due;
  for (auto& [id, item] : items_) {
    if (item.running) continue;
    if (item.due <= now) {
      due.emplace_back(item.due, id);
    } else {
      next = std::min(next, item.due);
    }
  }
  std::ranges::sort(due);
  for (const auto& [when, id] : due) {
    items_.at(id).running = true;
    workers_.Submit([this, id] { Run(id); });
  }
  return next;
}

void Publisher::Run(InodeId id) {
  MutexLock lock(mutex_);
  Item& item = items_.at(id);  // stays while it is running
  item.again = false;
  const InodePtr inode = item.inode;
  lock.Unlock();
  Status done = stop_.stop_requested() ? Fail(Code::kCancelled, "the mount ends")
                                       : attempt_(inode, {.stop = stop_.get_token(), .deadline = {}});
  lock.Lock();
  ++(done ? done_ : failures_);
  item.running = false;
  item.flushing = item.flushing && item.again;
  item.failures = done ? 0 : item.failures + 1;
  item.error = done ? std::optional<Error>() : std::optional<Error>(done.error());
  const bool finished = done && !item.again;
  if (finished) {
    items_.erase(id);
  } else {
    item.due = clock_.Now() + (item.again ? Duration::zero() : RetryDelay(item.failures));
    item.again = false;
    WakeFor(item.due);
  }
  changed_.NotifyAll();
  lock.Unlock();
  if (finished) finished_(inode);
}

}  // namespace millrace::vfs
