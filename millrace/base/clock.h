// Clocks, deadlines, and the date forms of HTTP and S3. Code takes its Clock as an argument, so that tests never sleep.
#pragma once

#include <chrono>
#include <compare>
#include <memory>
#include <stop_token>
#include <string>

#include "millrace/base/error.h"

namespace millrace {

/// A length of time.
using Duration = std::chrono::nanoseconds;
using TimePoint = std::chrono::steady_clock::time_point;  ///< monotonic; only differences have a meaning
using WallTime = std::chrono::system_clock::time_point;   ///< calendar time (UTC)

/// Returns a duration in seconds.
inline double SecondsOf(Duration duration) { return std::chrono::duration<double>(duration).count(); }

/// Source of time. Any thread may call any method.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual TimePoint Now() const = 0;  ///< the monotonic time
  virtual WallTime Wall() const = 0;  ///< the calendar time
  /// Blocks until `when` and returns true. Returns false if `stop` fires first.
  virtual bool SleepUntil(TimePoint when, std::stop_token stop = {}) = 0;

  /// As SleepUntil, with a duration from now on.
  bool SleepFor(Duration duration, std::stop_token stop = {}) { return SleepUntil(Now() + duration, stop); }
};

/// Returns the machine's clock. It lives for the whole process.
Clock& SystemClock();

/// A clock for tests that moves only when a test advances it. SleepUntil blocks until Advance() has moved it far
/// enough.
class FakeClock final : public Clock {
 public:
  /// Stands at `start`.
  explicit FakeClock(WallTime start = WallTime(std::chrono::seconds(1'700'000'000)));
  ~FakeClock() override;
  TimePoint Now() const override;
  WallTime Wall() const override;
  bool SleepUntil(TimePoint when, std::stop_token stop = {}) override;

  /// Moves the clock, and wakes the threads whose time has come.
  void Advance(Duration by);
  /// If enabled, SleepUntil moves the clock to its wake-up time and returns at once. Retries with back-off then take no
  /// time.
  void AdvanceOnSleep(bool enabled);
  /// Blocks until at least `count` threads are inside SleepUntil. A test may then Advance() and wake them.
  void AwaitSleepers(int count);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// The latest moment at which an operation may still run. Infinite by default.
class Deadline {
 public:
  /// Never passes.
  Deadline() = default;
  /// Passes at `at`.
  explicit Deadline(TimePoint at) : at_(at) {}
  /// Passes when `in` is over.
  static Deadline After(const Clock& clock, Duration in) { return Deadline(clock.Now() + in); }

  bool infinite() const { return at_ == TimePoint::max(); }  ///< whether it never passes
  TimePoint at() const { return at_; }                       ///< TimePoint::max() if infinite
  /// Returns whether the moment has come.
  bool Passed(const Clock& clock) const { return !infinite() && clock.Now() >= at_; }
  auto operator<=>(const Deadline&) const = default;

 private:
  TimePoint at_ = TimePoint::max();
};

std::string FormatIso8601(WallTime time);               ///< 2026-01-31T12:00:00.000Z
std::string FormatHttpDate(WallTime time);              ///< Sat, 31 Jan 2026 12:00:00 GMT
std::string FormatAmzDate(WallTime time);               ///< 20260131T120000Z
Result<WallTime> ParseIso8601(std::string_view text);   ///< also accepts FormatAmzDate's form
Result<WallTime> ParseHttpDate(std::string_view text);  ///< FormatHttpDate's form and the older ones of HTTP

}  // namespace millrace
