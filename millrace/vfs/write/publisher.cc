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
  auto found = files_.find(inode->id);
  if (found != files_.end()) {
    QueuedFile& file = found->second;
    file.again = file.running;
    return false;
  }
  if (files_.size() >= options_.most) return Fail(Code::kResourceExhausted, "{} files wait already", files_.size());
  const TimePoint due = clock_.Now() + delay;
  files_[inode->id] = {.inode = inode, .due = due, .error = {}};
  WakeFor(due);
  return true;
}

bool Publisher::Waits(const Inode& inode) const {
  MutexLock lock(mutex_);
  return files_.contains(inode.id);
}

Status Publisher::Flush(const object::Call& call) {
  MutexLock lock(mutex_);
  for (auto& [id, file] : files_) {
    file.flushing = true;
    file.again = file.running;
    file.due = std::min(file.due, clock_.Now());
  }
  WakeFor(clock_.Now());
  auto done = [this]() MR_REQUIRES(mutex_) {
    return std::ranges::none_of(files_, [](const auto& each) { return each.second.flushing; });
  };
  const bool in_time = call.deadline.infinite() ? changed_.Wait(mutex_, call.stop, done)
                                                : changed_.WaitUntil(mutex_, call.deadline.at(), call.stop, done);
  for (const auto& [id, file] : files_) {
    if (file.error) return Fail(*file.error);
  }
  if (in_time) return {};
  return Fail(Code::kDeadlineExceeded, "{} files could not be published in time", files_.size());
}

bool Publisher::AwaitProgress(const object::Call& call) {
  MutexLock lock(mutex_);
  auto hopeful = [this]() MR_REQUIRES(mutex_) {
    return std::ranges::any_of(files_, [](const auto& each) { return each.second.failures == 0; });
  };
  if (!hopeful()) return false;
  for (auto& [id, file] : files_) {
    if (file.failures == 0) file.due = std::min(file.due, clock_.Now());
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
  Stats stats{.waiting = static_cast<int>(files_.size()), .failures = failures_, .error = {}};
  int most = 0;
  for (const auto& [id, file] : files_) {
    stats.failing += file.failures > 0;
    if (file.failures <= most) continue;
    most = file.failures;
    stats.error = file.error;
  }
  return stats;
}

Duration Publisher::RetryDelay(int failures) const {
  return std::min<Duration>(options_.longest_retry, options_.first_retry * (1LL << std::min(failures - 1, 20)));
}

/// Wakes the scheduler at `due` at the latest.
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

/// Gives the due files to the workers. Returns the time at which the next file is due.
TimePoint Publisher::StartDue() {
  const TimePoint now = clock_.Now();
  TimePoint next = TimePoint::max();
  std::vector<std::pair<TimePoint, InodeId>> due;
  for (auto& [id, file] : files_) {
    if (file.running) continue;
    if (file.due <= now) {
      due.emplace_back(file.due, id);
    } else {
      next = std::min(next, file.due);
    }
  }
  std::ranges::sort(due);
  for (const auto& [when, id] : due) {
    files_.at(id).running = true;
    workers_.Submit([this, id] { Run(id); });
  }
  return next;
}

void Publisher::Run(InodeId id) {
  MutexLock lock(mutex_);
  QueuedFile& file = files_.at(id);  // stays while it is running
  file.again = false;
  const InodePtr inode = file.inode;
  lock.Unlock();
  Status done = stop_.stop_requested() ? Fail(Code::kCancelled, "the mount ends")
                                       : attempt_(inode, {.stop = stop_.get_token(), .deadline = {}});
  lock.Lock();
  ++(done ? done_ : failures_);
  file.running = false;
  file.flushing = file.flushing && file.again;
  file.failures = done ? 0 : file.failures + 1;
  file.error = done ? std::optional<Error>() : std::optional<Error>(done.error());
  const bool finished = done && !file.again;
  if (finished) {
    files_.erase(id);
  } else {
    file.due = clock_.Now() + (file.again ? Duration::zero() : RetryDelay(file.failures));
    file.again = false;
    WakeFor(file.due);
  }
  changed_.NotifyAll();
  lock.Unlock();
  if (finished) finished_(inode);
}

}  // namespace millrace::vfs
