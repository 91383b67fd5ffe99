#include "apps/common/flag_checks.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>

namespace millrace::cli {
namespace {

/// Where CLI11 keeps the description of a validator: behind the type's name, as in "TEXT:{auto,on,off}".
constexpr std::string_view kChoicesBegin = ":{";

}  // namespace

CLI::Validator OneOf(std::vector<std::string> words) {
  std::string description = fmt::format("{{{}}}", fmt::join(words, ","));
  const auto check = [words = std::move(words)](std::string& text) -> std::string {
    if (std::ranges::find(words, text) != words.end()) return "";
    return fmt::format("\"{}\" is none of {}", text, fmt::join(words, ", "));
  };
  return CLI::Validator(check, std::move(description));
}

std::vector<std::string> ChoicesOf(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  const std::size_t begin = type.find(kChoicesBegin), end = type.find('}', begin);
  if (begin == std::string::npos || end == std::string::npos) return {};
  const std::size_t from = begin + kChoicesBegin.size();
  std::vector<std::string> words;
  for (const std::string_view word : Split(std::string_view(type).substr(from, end - from), ','))
    words.emplace_back(word);
  return words;
}

template <class T>
std::string DescribeRange(T least, T most) {
  constexpr bool kWhole = std::is_integral_v<T>;
  const std::string kind = kWhole ? "a whole number" : "a number";
  const bool has_least = least > std::numeric_limits<T>::lowest();
  const bool has_most = most < std::numeric_limits<T>::max();
  // The least number of a floating-point type stands for "more than nothing".
  if (!kWhole && least > T{} && least <= std::numeric_limits<T>::min()) {
    return has_most ? fmt::format("{} above 0, up to {}", kind, most) : kind + " above 0";
  }
  if (has_least && has_most) return fmt::format("{} from {} to {}", kind, least, most);
  if (has_least) return fmt::format("{} of at least {}", kind, least);
  return has_most ? fmt::format("{} of at most {}", kind, most) : kind;
}

template std::string DescribeRange(int, int);
template std::string DescribeRange(std::int64_t, std::int64_t);
template std::string DescribeRange(std::uint64_t, std::uint64_t);
template std::string DescribeRange(double, double);

}  // namespace millrace::cli
