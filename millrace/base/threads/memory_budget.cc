#include "millrace/base/threads/memory_budget.h"

#include <algorithm>
#include <deque>

#include "millrace/base/result.h"
#include "millrace/base/threads/sync.h"

namespace millrace {

struct MemoryBudget::Rep {
  explicit Rep(std::uint64_t bytes) : total(bytes) {}

  void Take(std::uint64_t bytes) MR_REQUIRES(mutex) {
    used += bytes;
    peak = std::max(peak, used);
  }
  void Give(std::uint64_t bytes) MR_EXCLUDES(mutex) {
    MutexLock lock(mutex);
    used -= bytes;
    freed.NotifyAll();
  }

  // Constant after construction.
  const std::uint64_t total;

  Mutex mutex;
  CondVar freed;
  // Guarded by mutex.
  std::deque<std::uint64_t> waiting MR_GUARDED_BY(mutex);  ///< tickets of blocked Acquire calls, oldest first
  std::uint64_t next_ticket MR_GUARDED_BY(mutex) = 0;
  std::uint64_t used MR_GUARDED_BY(mutex) = 0;
  std::uint64_t peak MR_GUARDED_BY(mutex) = 0;
};

Reservation& Reservation::operator=(Reservation&& other) noexcept {
  if (this != &other) {
    Release();
    budget_ = std::exchange(other.budget_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
  }
  return *this;
}

void Reservation::ShrinkTo(std::uint64_t bytes) {
  if (budget_ == nullptr || bytes >= bytes_) return;
  budget_->rep_->Give(bytes_ - bytes);
  bytes_ = bytes;
  if (bytes_ == 0) budget_ = nullptr;
}

MemoryBudget::MemoryBudget(std::uint64_t total) : rep_(std::make_unique<Rep>(total)) {}
MemoryBudget::~MemoryBudget() = default;

Result<Reservation> MemoryBudget::Acquire(std::uint64_t bytes, std::stop_token stop) {
  Rep& rep = *rep_;
  if (bytes > rep.total)
    return Fail(Code::kResourceExhausted, "{} bytes at once do not fit the memory budget of {}; raise --memory-budget",
                bytes, rep.total);
  MutexLock lock(rep.mutex);
  std::uint64_t ticket = rep.next_ticket++;
  rep.waiting.push_back(ticket);
  bool granted = rep.freed.Wait(rep.mutex, stop, [&]() MR_NO_THREAD_SAFETY_ANALYSIS {
    return rep.waiting.front() == ticket && rep.used + bytes <= rep.total;
  });
  std::erase(rep.waiting, ticket);
  // The next request is the first now, whether this one got its memory or gave up. It may fit as well.
  rep.freed.NotifyAll();
  if (!granted) return Fail(Code::kCancelled, "cancelled while waiting for memory");
  rep.Take(bytes);
  return Reservation(this, bytes);
}

std::optional<Reservation> MemoryBudget::TryAcquire(std::uint64_t bytes, Priority priority) {
  Rep& rep = *rep_;
  MutexLock lock(rep.mutex);
  std::uint64_t limit = priority == Priority::kSpeculative ? rep.total - rep.total / 8 : rep.total;
  if (!rep.waiting.empty() || rep.used > limit || bytes > limit - rep.used) return std::nullopt;
  rep.Take(bytes);
  return Reservation(this, bytes);
}

std::uint64_t MemoryBudget::total() const { return rep_->total; }

std::uint64_t MemoryBudget::used() const {
  MutexLock lock(rep_->mutex);
  return rep_->used;
}

std::uint64_t MemoryBudget::peak() const {
  MutexLock lock(rep_->mutex);
  return rep_->peak;
}

}  // namespace millrace
