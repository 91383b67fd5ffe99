#include "millrace/serve/models/served_scheduler.h"

#include <algorithm>
#include <utility>

namespace millrace::serve {
namespace {

/// Adds what a scheduler did, but not what its cache has.
void Add(SchedulerCounters& sum, const SchedulerCounters& more) {
  sum.steps += more.steps;
  sum.tokens += more.tokens;
  sum.shared_tokens += more.shared_tokens;
  sum.drafted_tokens += more.drafted_tokens;
  sum.accepted_tokens += more.accepted_tokens;
  sum.failed_drafts += more.failed_drafts;
  sum.preemptions += more.preemptions;
}

}  // namespace

std::shared_ptr<Scheduler> ServedScheduler::Get() const {
  MutexLock lock(mutex_);
  return current_;
}

void ServedScheduler::Replace(std::shared_ptr<Scheduler> next) {
  MutexLock lock(mutex_);
  replaced_.push_back(std::exchange(current_, std::move(next)));
}

int ServedScheduler::DropEnded() {
  std::vector<std::shared_ptr<Scheduler>> ended;  // destroyed without the lock: their threads are joined
  MutexLock lock(mutex_);
  // Nobody gets a replaced scheduler any more, so a count of one stays.
  const auto first = std::ranges::partition(replaced_, [](const auto& each) { return each.use_count() > 1; }).begin();
  for (auto at = first; at != replaced_.end(); ++at) {
    Add(ended_, (*at)->counters());
    ended.push_back(std::move(*at));
  }
  replaced_.erase(first, replaced_.end());
  const int left = static_cast<int>(replaced_.size());
  lock.Unlock();
  return left;
}

int ServedScheduler::running() const {
  MutexLock lock(mutex_);
  int sum = current_->running();
  for (const auto& each : replaced_) sum += each->running();
  return sum;
}

int ServedScheduler::waiting() const {
  MutexLock lock(mutex_);
  int sum = current_->waiting();
  for (const auto& each : replaced_) sum += each->waiting();
  return sum;
}

SchedulerCounters ServedScheduler::counters() const {
  MutexLock lock(mutex_);
  const SchedulerCounters now = current_->counters();
  SchedulerCounters sum = ended_;
  Add(sum, now);
  for (const auto& each : replaced_) Add(sum, each->counters());
  sum.used_blocks = now.used_blocks;
  sum.all_blocks = now.all_blocks;
  return sum;
}

}  // namespace millrace::serve
