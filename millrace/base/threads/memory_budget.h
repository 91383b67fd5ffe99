// One bound on the memory of data in flight. Readers and writers reserve their buffers from it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <stop_token>
#include <utility>

#include "millrace/base/error.h"

namespace millrace {

class MemoryBudget;

/// A share of a MemoryBudget. The destructor gives it back. Movable, one owner. The budget must outlive it.
class Reservation {
 public:
  /// A share of nothing.
  Reservation() = default;
  /// Takes the share of `other` over.
  Reservation(Reservation&& other) noexcept
      : budget_(std::exchange(other.budget_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  /// Gives its own share back, then takes that of `other` over.
  Reservation& operator=(Reservation&& other) noexcept;
  ~Reservation() { Release(); }

  /// The size of the share.
  std::uint64_t bytes() const { return bytes_; }
  /// Gives back all but `bytes`.
  void ShrinkTo(std::uint64_t bytes);
  /// Gives back the whole share.
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
  /// The urgency of a request: somebody waits for what the memory is for, or only may need it later.
  enum class Priority { kForeground, kSpeculative };

  /// `total`: bytes.
  explicit MemoryBudget(std::uint64_t total);
  /// REQUIRES: every Reservation has been given back.
  ~MemoryBudget();
  MemoryBudget(const MemoryBudget&) = delete;
  MemoryBudget& operator=(const MemoryBudget&) = delete;

  /// Reserves `bytes` for a foreground request. Blocks until they are free.
  /// Errors: kCancelled if `stop` fires; kResourceExhausted, at once, if bytes > total().
  Result<Reservation> Acquire(std::uint64_t bytes, std::stop_token stop = {});
  /// Reserves `bytes`, or returns nothing if they are not free or a foreground request waits. Never blocks.
  std::optional<Reservation> TryAcquire(std::uint64_t bytes, Priority priority);

  std::uint64_t total() const;  ///< bytes that all reservations together may have
  std::uint64_t used() const;   ///< bytes that are reserved now
  std::uint64_t peak() const;   ///< the most bytes that were reserved at a time

 private:
  friend class Reservation;
  struct Rep;
  const std::unique_ptr<Rep> rep_;
};

}  // namespace millrace
