// Prints times as Python's datetime module does, so that a template has the text that datasets' users know.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace millrace::data::arrow_format {

/// `per_second` is the number of units in a second: 1, 1,000, 1,000,000 or 1,000,000,000. A fraction of a second has
/// six digits, or nine if it is no whole number of microseconds, or none if it is zero.

/// Returns "2024-02-29 12:34:56.000007" for a moment since 1970. With a `zone`, the offset from UTC follows: "+00:00".
/// A zone such as "+02:00" shifts the time. Other zones are printed in UTC, because their rules are not known here.
std::string PrintMoment(std::int64_t units, std::int64_t per_second, std::string_view zone);
/// Returns "12:34:56" for the time since midnight.
std::string PrintTimeOfDay(std::int64_t units, std::int64_t per_second);
/// Returns "1 day, 2:03:04", as timedelta is printed. Of negative spans the days alone are negative.
std::string PrintSpan(std::int64_t units, std::int64_t per_second);

}  // namespace millrace::data::arrow_format
