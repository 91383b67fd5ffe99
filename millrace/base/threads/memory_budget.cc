#include "millrace/base/threads/memory_budget.h"

#include <algorithm>

namespace millrace {

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
  budget_->Give(bytes_ - bytes);
  bytes_ = bytes;
  if (bytes_ == 0) budget_ = nullptr;
}

Result<Reservation> MemoryBudget::Acquire(std::uint64_t bytes, std::stop_token stop) {
  if (bytes > total_)
    return Fail(Code::kResourceExhausted, "{} bytes at once do not fit the memory budget of {}; raise --memory-budget",
                bytes, total_);
  MutexLock lock(mutex_);
  std::uint64_t ticket = next_ticket_++;
  waiting_.push_back(ticket);
  bool granted = freed_.Wait(mutex_, stop, [&]() MR_NO_THREAD_SAFETY_ANALYSIS {
    return waiting_.front() == ticket && used_ + bytes <= total_;
  });
  std::erase(waiting_, ticket);
  // The next request is the first now, whether this one got its memory or gave up. It may fit as well.
  freed_.NotifyAll();
  if (!granted) return Fail(Code::kCancelled, "cancelled while waiting for memory");
  Take(bytes);
  return Reservation(this, bytes);
}

std::optional<Reservation> MemoryBudget::TryAcquire(std::uint64_t bytes, Priority priority) {
  MutexLock lock(mutex_);
  std::uint64_t limit = priority == Priority::kSpeculative ? total_ - total_ / 8 : total_;
  if (!waiting_.empty() || used_ > limit || bytes > limit - used_) return std::nullopt;
  Take(bytes);
  return Reservation(this, bytes);
}

std::uint64_t MemoryBudget::used() const {
  MutexLock lock(mutex_);
  return used_;
}

std::uint64_t MemoryBudget::peak() const {
  MutexLock lock(mutex_);
  return peak_;
}

void MemoryBudget::Give(std::uint64_t bytes) {
  MutexLock lock(mutex_);
  used_ -= bytes;
  freed_.NotifyAll();
}

void MemoryBudget::Take(std::uint64_t bytes) {
  used_ += bytes;
  peak_ = std::max(peak_, used_);
}

}  // namespace millrace
