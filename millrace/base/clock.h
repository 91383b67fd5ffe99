// Time is passed in, so that tests never sleep.
#pragma once

#include <chrono>
#include <compare>
#include <memory>
#include <stop_token>
#include <string>

#include "millrace/base/result.h"

namespace millrace {

using Duration = std::chrono::nanoseconds;
using TimePoint = std::chrono::steady_clock::time_point;  ///< monotonic; only differences mean something
using WallTime = std::chrono::system_clock::time_point;   ///< what the calendar says (UTC)

/// Source of time. Any thread may call any method.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual TimePoint Now() const = 0;
  virtual WallTime Wall() const = 0;
  /// Blocks until `when`, or until `stop` fires: then returns false.
  virtual bool SleepUntil(TimePoint when, std::stop_token stop = {}) = 0;

  bool SleepFor(Duration duration, std::stop_token stop = {}) { return SleepUntil(Now() + duration, stop); }
};

/// The machine's clock. Lives for the whole process.
Clock& SystemClock();

/// A clock that moves only when told to. SleepUntil blocks until Advance() has moved it far enough.
class FakeClock final : public Clock {
 public:
  explicit FakeClock(WallTime start = WallTime(std::chrono::seconds(1'700'000'000)));
  ~FakeClock() override;
  TimePoint Now() const override;
  WallTime Wall() const override;
  bool SleepUntil(TimePoint when, std::stop_token stop = {}) override;

  void Advance(Duration by);
  /// From now on a sleeper moves the clock to its wake-up time itself: retries with back-off finish at once.
  void AdvanceOnSleep(bool enabled);
  /// Blocks until `count` threads are inside SleepUntil, so that a test may Advance() knowing who waits.
  void AwaitSleepers(int count);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// The latest moment at which an operation may still be under way. Infinite by default.
class Deadline {
 public:
  Deadline() = default;
  explicit Deadline(TimePoint at) : at_(at) {}
  static Deadline After(const Clock& clock, Duration in) { return Deadline(clock.Now() + in); }

  bool infinite() const { return at_ == TimePoint::max(); }
  TimePoint at() const { return at_; }
  bool Passed(const Clock& clock) const { return !infinite() && clock.Now() >= at_; }
  auto operator<=>(const Deadline&) const = default;

 private:
  TimePoint at_ = TimePoint::max();
};

std::string FormatIso8601(WallTime time);              ///< 2026-01-31T12:00:00.000Z
std::string FormatHttpDate(WallTime time);             ///< Sat, 31 Jan 2026 12:00:00 GMT
std::string FormatAmzDate(WallTime time);              ///< 20260131T120000Z
Result<WallTime> ParseIso8601(std::string_view text);  ///< also accepts FormatAmzDate's form
Result<WallTime> ParseHttpDate(std::string_view text);

}  // namespace millrace
