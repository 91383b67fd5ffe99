#include "millrace/base/clock.h"

#include <time.h>

#include <charconv>
#include <condition_variable>
#include <cstdio>
#include <mutex>

#include "millrace/base/result.h"

namespace millrace {
namespace {

class MachineClock final : public Clock {
 public:
  TimePoint Now() const override { return std::chrono::steady_clock::now(); }
  WallTime Wall() const override { return std::chrono::system_clock::now(); }
  bool SleepUntil(TimePoint when, std::stop_token stop) override {
    std::mutex mutex;
    std::condition_variable_any never;
    std::unique_lock lock(mutex);
    never.wait_until(lock, stop, when, [] { return false; });
    return !stop.stop_requested();
  }
};

std::tm ToUtc(WallTime time) {
  std::time_t seconds = std::chrono::floor<std::chrono::seconds>(time).time_since_epoch().count();
  std::tm utc;
  gmtime_r(&seconds, &utc);
  return utc;
}

std::string Format(WallTime time, const char* format) {
  std::tm utc = ToUtc(time);
  char buffer[64];
  return std::string(buffer, strftime(buffer, sizeof buffer, format, &utc));
}

/// strftime knows the locale's names; HTTP wants English ones.
constexpr const char* kDays[] = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
constexpr const char* kMonths[] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};

Result<WallTime> FromFields(int year, int month, int day, int hour, int minute, int second, std::string_view text) {
  using namespace std::chrono;
  year_month_day date{std::chrono::year(year), std::chrono::month(static_cast<unsigned>(month)),
                      std::chrono::day(static_cast<unsigned>(day))};
  if (!date.ok() || hour < 0 || hour > 23 || minute < 0 || minute > 59 || second < 0 || second > 60) {
    return Fail(Code::kInvalidArgument, "\"{}\" is not a date; expected a day of the calendar and a time of the day",
                text);
  }
  return WallTime(sys_days(date)) + hours(hour) + minutes(minute) + seconds(second);
}

}  // namespace

Clock& SystemClock() {
  static MachineClock clock;
  return clock;
}

struct FakeClock::State {
  mutable std::mutex mutex;
  std::condition_variable_any moved;
  // Further ahead than any machine has run: a deadline of the system's clock has always passed here, so that mixing the
  // two fails on every machine.
  TimePoint now{std::chrono::years(100)};
  WallTime wall;
  int sleepers = 0;
  bool advance_on_sleep = false;

  void MoveTo(TimePoint when) {
    if (when <= now) return;
    wall += std::chrono::duration_cast<WallTime::duration>(when - now);
    now = when;
    moved.notify_all();
  }
};

FakeClock::FakeClock(WallTime start) : state_(std::make_unique<State>()) { state_->wall = start; }
FakeClock::~FakeClock() = default;

TimePoint FakeClock::Now() const {
  std::lock_guard lock(state_->mutex);
  return state_->now;
}

WallTime FakeClock::Wall() const {
  std::lock_guard lock(state_->mutex);
  return state_->wall;
}

bool FakeClock::SleepUntil(TimePoint when, std::stop_token stop) {
  std::unique_lock lock(state_->mutex);
  if (state_->advance_on_sleep && !stop.stop_requested()) state_->MoveTo(when);
  ++state_->sleepers;
  state_->moved.notify_all();
  state_->moved.wait(lock, stop, [&] { return state_->now >= when; });
  --state_->sleepers;
  return !stop.stop_requested();
}

void FakeClock::Advance(Duration by) {
  std::lock_guard lock(state_->mutex);
  state_->MoveTo(state_->now + by);
}

void FakeClock::AdvanceOnSleep(bool enabled) {
  std::lock_guard lock(state_->mutex);
  state_->advance_on_sleep = enabled;
}

void FakeClock::AwaitSleepers(int count) {
  std::unique_lock lock(state_->mutex);
  state_->moved.wait(lock, [&] { return state_->sleepers >= count; });
}

std::string FormatIso8601(WallTime time) {
  auto millis =
      std::chrono::duration_cast<std::chrono::milliseconds>(time - std::chrono::floor<std::chrono::seconds>(time));
  return fmt::format("{}.{:03}Z", Format(time, "%Y-%m-%dT%H:%M:%S"), millis.count());
}

std::string FormatHttpDate(WallTime time) {
  std::tm utc = ToUtc(time);
  return fmt::format("{}, {:02} {} {:04} {:02}:{:02}:{:02} GMT", kDays[utc.tm_wday], utc.tm_mday, kMonths[utc.tm_mon],
                     utc.tm_year + 1900, utc.tm_hour, utc.tm_min, utc.tm_sec);
}

std::string FormatAmzDate(WallTime time) { return Format(time, "%Y%m%dT%H%M%SZ"); }

Result<WallTime> ParseIso8601(std::string_view text) {
  // Parsed by hand for speed: a page of a listing has a thousand dates.
  std::string_view rest = text = text.substr(0, 64);
  bool good = true;
  auto take = [&](std::size_t digits, char before) {
    if (before != '\0') {
      good = good && rest.starts_with(before);
      rest.remove_prefix(good ? 1 : 0);
    }
    unsigned value = 0;
    const std::string_view number = rest.substr(0, digits);
    const char* end = std::from_chars(number.data(), number.data() + number.size(), value).ptr;
    good = good && number.size() == digits && end == number.data() + number.size();
    rest.remove_prefix(good ? digits : 0);
    return static_cast<int>(value);
  };
  const int year = take(4, '\0');
  const bool extended = rest.starts_with('-');
  const int month = take(2, extended ? '-' : '\0'), day = take(2, extended ? '-' : '\0');
  const int hour = take(2, 'T'), minute = take(2, extended ? ':' : '\0'), second = take(2, extended ? ':' : '\0');
  if (!good) {
    return Fail(Code::kInvalidArgument, "\"{}\" is not an ISO 8601 date; expected one such as 2026-01-31T12:00:00Z",
                text);
  }
  WallTime time = MR_TRY(FromFields(year, month, day, hour, minute, second, text));
  if (rest.starts_with('.')) {
    rest.remove_prefix(1);
    std::int64_t unit = 100'000'000;
    for (; !rest.empty() && rest[0] >= '0' && rest[0] <= '9'; rest.remove_prefix(1), unit /= 10)
      time += std::chrono::duration_cast<WallTime::duration>(std::chrono::nanoseconds((rest[0] - '0') * unit));
  }
  if (rest != "Z" && rest != "+00:00" && !rest.empty())
    return Fail(Code::kInvalidArgument, "\"{}\" is not in UTC; end it with Z", text);
  return time;
}

Result<WallTime> ParseHttpDate(std::string_view text) {
  std::string owned(text.substr(0, 64));
  char month_name[4] = {};
  int year, day, hour, minute, second;
  if (std::sscanf(owned.c_str(), "%*3s, %2d %3s %4d %2d:%2d:%2d GMT", &day, month_name, &year, &hour, &minute,
                  &second) == 6)
    for (int month = 1; month <= 12; ++month)
      if (std::string_view(month_name) == kMonths[month - 1])
        return FromFields(year, month, day, hour, minute, second, owned);
  return Fail(Code::kInvalidArgument, "\"{}\" is not an HTTP date; expected one such as Sat, 31 Jan 2026 12:00:00 GMT",
              owned);
}

}  // namespace millrace
