// One bound on the memory of data in flight. Readers and writers reserve their buffers from it.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <stop_token>
#include <utility>

#include "millrace/base/result.h"
#include "millrace/base/threads/sync.h"

namespace millrace {

class MemoryBudget;

/// A share of a MemoryBudget. The destructor gives it back. Movable, one owner. The budget must outlive it.
class Reservation {
 public:
  Reservation() = default;
  Reservation(Reservation&& other) noexcept
      : budget_(std::exchange(other.budget_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  Reservation& operator=(Reservation&& other) noexcept;
  ~Reservation() { Release(); }

  std::uint64_t bytes() const { return bytes_; }
  /// Gives back all but `bytes`.
  void ShrinkTo(std::uint64_t bytes);
  void Release() { ShrinkTo(0); }

 private:
  friend class MemoryBudget;
  Reservation(MemoryBudget* budget, std::uint64_t bytes) : budget_(budget), bytes_(bytes) {}
  MemoryBudget* budget_ = nullptr;
  std::uint64_t bytes_ = 0;
};

/// Grants reservations of at most `total` bytes together. Foreground requests wait in order of arrival and go before
/// speculative ones (readahead). Speculative requests never take the last eighth of the budget. Thread-safe.
class MemoryBudget {
 public:
  enum class Priority { kForeground, kSpeculative };

  explicit MemoryBudget(std::uint64_t total) : total_(total) {}

  /// Reserves `bytes` for a foreground request. Blocks until they are free.
  /// Errors: kCancelled if `stop` fires; kResourceExhausted, at once, if bytes > total().
  Result<Reservation> Acquire(std::uint64_t bytes, std::stop_token stop = {}) MR_EXCLUDES(mutex_);
  /// Reserves `bytes`, or returns nothing if they are not free or a foreground request waits. Never blocks.
  std::optional<Reservation> TryAcquire(std::uint64_t bytes, Priority priority) MR_EXCLUDES(mutex_);

  std::uint64_t total() const { return total_; }
  std::uint64_t used() const MR_EXCLUDES(mutex_);
  std::uint64_t peak() const MR_EXCLUDES(mutex_);

 private:
  friend class Reservation;
  void Give(std::uint64_t bytes) MR_EXCLUDES(mutex_);
  void Take(std::uint64_t bytes) MR_REQUIRES(mutex_);

  // Constant after construction.
  const std::uint64_t total_;

  mutable Mutex mutex_;
  CondVar freed_;
  // Guarded by mutex_.
  std::deque<std::uint64_t> waiting_ MR_GUARDED_BY(mutex_);  ///< tickets of blocked Acquire calls, oldest first
  std::uint64_t next_ticket_ MR_GUARDED_BY(mutex_) = 0;
  std::uint64_t used_ MR_GUARDED_BY(mutex_) = 0;
  std::uint64_t peak_ MR_GUARDED_BY(mutex_) = 0;
};

}  // namespace millrace
