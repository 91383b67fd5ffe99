#include "millrace/base/text.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <numeric>

namespace millrace {
namespace {

struct Unit {
  std::string_view name;
  double factor;
};

/// "12.5MiB" → 12.5 and "MiB".
Result<std::pair<double, std::string_view>> NumberAndUnit(std::string_view text) {
  double number = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || !std::isfinite(number) || number < 0) {
    return Fail(Code::kInvalidArgument, "\"{}\" does not start with a number; expected a form such as 64MiB or 1.5s",
                text);
  }
  return std::pair(number, text.substr(static_cast<std::size_t>(end - text.data())));
}

/// Letters inserted, removed, replaced, or swapped with their neighbour ("optimal string alignment").
int EditDistance(std::string_view a, std::string_view b) {
  std::vector<int> before(b.size() + 1), row(b.size() + 1), next(b.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (std::size_t i = 1; i <= a.size(); ++i) {
    next[0] = static_cast<int>(i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      next[j] = std::min({row[j] + 1, next[j - 1] + 1, row[j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        next[j] = std::min(next[j], before[j - 2] + 1);
    }
    before.swap(row);
    row.swap(next);
  }
  return row.back();
}

bool IsUnreserved(unsigned char c) {
  return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '_' ||
         c == '.' || c == '~';
}

}  // namespace

Result<std::uint64_t> ParseBytes(std::string_view text) {
  static constexpr std::array<Unit, 14> kUnits = {{{"", 1},
                                                   {"B", 1},
                                                   {"K", 0x1p10},
                                                   {"KiB", 0x1p10},
                                                   {"KB", 1e3},
                                                   {"M", 0x1p20},
                                                   {"MiB", 0x1p20},
                                                   {"MB", 1e6},
                                                   {"G", 0x1p30},
                                                   {"GiB", 0x1p30},
                                                   {"GB", 1e9},
                                                   {"T", 0x1p40},
                                                   {"TiB", 0x1p40},
                                                   {"TB", 1e12}}};
  auto [number, unit] = MR_TRY(NumberAndUnit(text));
  for (const Unit& known : kUnits) {
    if (ToLower(known.name) != ToLower(unit)) continue;
    double bytes = number * known.factor;
    if (bytes >= 0x1p63) break;
    return static_cast<std::uint64_t>(bytes);
  }
  return Fail(Code::kInvalidArgument, "\"{}\" is not a size; write it as 4096, 512KiB, 64MB or 2GiB", text);
}

Result<Duration> ParseDuration(std::string_view text) {
  static constexpr std::array<Unit, 6> kUnits = {
      {{"us", 1e3}, {"ms", 1e6}, {"s", 1e9}, {"m", 60e9}, {"h", 3600e9}, {"d", 86400e9}}};
  auto [number, unit] = MR_TRY(NumberAndUnit(text));
  for (const Unit& known : kUnits)
    if (known.name == unit && number * known.factor < 0x1p62)
      return Duration(static_cast<std::int64_t>(number * known.factor));
  return Fail(Code::kInvalidArgument, "\"{}\" is not a duration; write it as 250ms, 10s, 5m, 2h or 1d", text);
}

std::string FormatBytes(std::uint64_t bytes) {
  static constexpr std::array<Unit, 4> kUnits = {{{"TB", 1e12}, {"GB", 1e9}, {"MB", 1e6}, {"kB", 1e3}}};
  for (const Unit& unit : kUnits)
    if (static_cast<double>(bytes) >= unit.factor)
      return fmt::format("{:.1f} {}", static_cast<double>(bytes) / unit.factor, unit.name);
  return fmt::format("{} B", bytes);
}

std::string FormatDuration(Duration duration) {
  double seconds = std::chrono::duration<double>(duration).count();
  if (seconds < 1e-3) return fmt::format("{:.0f} us", seconds * 1e6);
  if (seconds < 1) return fmt::format("{:.1f} ms", seconds * 1e3);
  if (seconds < 60) return fmt::format("{:.1f} s", seconds);
  auto whole = static_cast<std::int64_t>(seconds);
  if (whole < 3600) return fmt::format("{}m{:02}s", whole / 60, whole % 60);
  return fmt::format("{}h{:02}m", whole / 3600, whole / 60 % 60);
}

std::string FormatCount(std::uint64_t count) {
  std::string digits = fmt::format("{}", count);
  for (auto at = static_cast<std::ptrdiff_t>(digits.size()) - 3; at > 0; at -= 3)
    digits.insert(static_cast<std::size_t>(at), ",");
  return digits;
}

std::string_view NearestName(std::string_view name, std::span<const std::string_view> candidates) {
  std::string_view best;
  // A slip changes a few letters of a word, not most of them.
  int best_distance = 1 + static_cast<int>(std::max<std::size_t>(1, name.size() / 3));
  for (std::string_view candidate : candidates) {
    int distance = EditDistance(name, candidate);
    if (distance < best_distance) {
      best = candidate;
      best_distance = distance;
    }
  }
  return best;
}

std::string UnknownName(std::string_view kind, std::string_view name, std::span<const std::string_view> candidates) {
  std::string_view nearest = NearestName(name, candidates);
  if (nearest.empty()) return fmt::format("unknown {} \"{}\"", kind, name);
  return fmt::format("unknown {} \"{}\"; did you mean \"{}\"?", kind, name, nearest);
}

std::vector<std::string_view> Split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (;;) {
    std::size_t at = text.find(separator);
    parts.push_back(text.substr(0, at));
    if (at == std::string_view::npos) return parts;
    text.remove_prefix(at + 1);
  }
}

std::string_view Trim(std::string_view text) {
  std::size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\r\n") - first + 1);
}

std::string ToLower(std::string_view text) {
  std::string lower(text);
  for (char& c : lower)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return lower;
}

std::string PercentEncode(std::string_view text, bool keep_slash) {
  static constexpr char kDigits[] = "0123456789ABCDEF";
  std::string encoded;
  encoded.reserve(text.size() + 16);
  for (char c : text) {
    auto byte = static_cast<unsigned char>(c);
    if (IsUnreserved(byte) || (keep_slash && c == '/')) {
      encoded += c;
    } else {
      encoded += '%';
      encoded += kDigits[byte >> 4];
      encoded += kDigits[byte & 15];
    }
  }
  return encoded;
}

Result<std::string> PercentDecode(std::string_view text, bool plus_is_space) {
  const std::size_t plain = std::min(text.find_first_of(plus_is_space ? "%+" : "%"), text.size());
  std::string decoded;
  decoded.reserve(text.size());
  decoded = text.substr(0, plain);
  for (std::size_t i = plain; i < text.size(); ++i) {
    if (text[i] == '%') {
      unsigned value = 0;
      const char* digits = text.data() + i + 1;
      if (i + 2 >= text.size() || std::from_chars(digits, digits + 2, value, 16).ptr != digits + 2) {
        return Fail(Code::kInvalidArgument,
                    "\"{}\": '%' is not followed by two hexadecimal digits; write %25 for a percent sign", text);
      }
      decoded += static_cast<char>(value);
      i += 2;
    } else {
      decoded += plus_is_space && text[i] == '+' ? ' ' : text[i];
    }
  }
  return decoded;
}

bool IsValidUtf8(std::string_view text) {
  for (std::size_t i = 0; i < text.size();) {
    auto lead = static_cast<unsigned char>(text[i++]);
    if (lead < 0x80) continue;
    int more = lead >= 0xf0 ? 3 : lead >= 0xe0 ? 2 : 1;
    if (lead < 0xc2 || lead > 0xf4) return false;
    for (int k = 0; k < more; ++k, ++i) {
      if (i == text.size()) return false;
      auto next = static_cast<unsigned char>(text[i]);
      // The first continuation byte excludes overlong forms, surrogates and code points beyond U+10FFFF.
      unsigned char least = k == 0 && lead == 0xe0 ? 0xa0 : k == 0 && lead == 0xf0 ? 0x90 : 0x80;
      unsigned char most = k == 0 && lead == 0xed ? 0x9f : k == 0 && lead == 0xf4 ? 0x8f : 0xbf;
      if (next < least || next > most) return false;
    }
  }
  return true;
}

}  // namespace millrace
