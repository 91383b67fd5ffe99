#include "millrace/data/arrow/python_time.h"

#include <fmt/format.h>

#include <chrono>
#include <cstdlib>

namespace millrace::data::arrow_format {
namespace {

constexpr std::int64_t kSecondsOfDay = 86'400;

/// A number of units as whole days, seconds of the last day, and the rest of a second. All but the days are not
/// negative.
struct DividedTime {
  std::int64_t days = 0, seconds = 0, nanoseconds = 0;
};

DividedTime Divide(std::int64_t units, std::int64_t per_second) {
  const std::int64_t per_day = per_second * kSecondsOfDay;
  std::int64_t days = units / per_day, rest = units % per_day;
  if (rest < 0) --days, rest += per_day;
  return {days, rest / per_second, rest % per_second * (1'000'000'000 / per_second)};
}

std::string PrintFraction(std::int64_t nanoseconds) {
  if (nanoseconds == 0) return "";
  if (nanoseconds % 1000 == 0) return fmt::format(".{:06}", nanoseconds / 1000);
  return fmt::format(".{:09}", nanoseconds);
}

std::string PrintClock(const DividedTime& time) {
  return fmt::format("{:02}:{:02}:{:02}{}", time.seconds / 3600, time.seconds / 60 % 60, time.seconds % 60,
                     PrintFraction(time.nanoseconds));
}

/// Returns the minutes of a zone such as "+02:00" or "-0530"; 0 for other zones.
std::int64_t OffsetMinutes(std::string_view zone) {
  if (zone.empty() || (zone[0] != '+' && zone[0] != '-')) return 0;
  std::int64_t digits = 0;
  int count = 0;
  for (const char c : zone.substr(1)) {
    if (c == ':' && count == 2) continue;
    if (c < '0' || c > '9') return 0;
    digits = digits * 10 + (c - '0');
    if (++count > 4) return 0;
  }
  if (count != 4) return 0;
  const std::int64_t minutes = digits / 100 * 60 + digits % 100;
  return zone[0] == '-' ? -minutes : minutes;
}

}  // namespace

std::string PrintMoment(std::int64_t units, std::int64_t per_second, std::string_view zone) {
  const std::int64_t offset = OffsetMinutes(zone);
  DividedTime time = Divide(units, per_second);
  // The offset is less than five days, so that it is added without an overflow of the units.
  const DividedTime shifted = Divide(time.seconds + offset * 60, 1);
  time.days += shifted.days;
  time.seconds = shifted.seconds;
  const std::chrono::year_month_day date{std::chrono::sys_days(std::chrono::days(time.days))};
  std::string printed =
      fmt::format("{:04}-{:02}-{:02} {}", static_cast<int>(date.year()), static_cast<unsigned>(date.month()),
                  static_cast<unsigned>(date.day()), PrintClock(time));
  if (zone.empty()) return printed;
  const std::int64_t away = std::abs(offset);
  return printed + fmt::format("{}{:02}:{:02}", offset < 0 ? '-' : '+', away / 60, away % 60);
}

std::string PrintTimeOfDay(std::int64_t units, std::int64_t per_second) {
  return PrintClock(Divide(units, per_second));
}

std::string PrintSpan(std::int64_t units, std::int64_t per_second) {
  const DividedTime time = Divide(units, per_second);
  const std::string days =
      time.days == 0 ? "" : fmt::format("{} day{}, ", time.days, std::abs(time.days) == 1 ? "" : "s");
  return fmt::format("{}{}:{:02}:{:02}{}", days, time.seconds / 3600, time.seconds / 60 % 60, time.seconds % 60,
                     PrintFraction(time.nanoseconds));
}

}  // namespace millrace::data::arrow_format
