// Checks of the values of flags. A refusal names the value and what is expected, in the words of Millrace.
#pragma once

#include <CLI/CLI.hpp>
#include <charconv>
#include <concepts>
#include <limits>
#include <string>
#include <system_error>
#include <type_traits>
#include <utility>
#include <vector>

#include "millrace/base/text.h"

namespace millrace::cli {

/// Accepts one of the words. `--help` and the completions of shells show the words (ChoicesOf).
CLI::Validator OneOf(std::vector<std::string> words);

/// Returns the words that OneOf() accepts for the option, or none.
std::vector<std::string> ChoicesOf(const CLI::Option& option);

/// Returns "a whole number from 1 to 16", "a number of at least 0.5" or "a number above 0". Bounds at the limits of
/// `T` are left out.
template <class T>
std::string DescribeRange(T least, T most);

/// Accepts a number from `least` to `most`.
template <class T>
  requires std::is_arithmetic_v<T>
CLI::Validator Between(T least, T most) {
  const auto check = [least, most, expected = DescribeRange(least, most)](std::string& text) -> std::string {
    T number{};
    const char* end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, number);
    if (error == std::errc{} && stop == end && number >= least && number <= most) return "";
    return "\"" + text + "\" is not " + expected;
  };
  return CLI::Validator(check, "");
}

template <class T>
  requires std::is_arithmetic_v<T>
CLI::Validator AtLeast(T least) {
  return Between(least, std::numeric_limits<T>::max());
}

}  // namespace millrace::cli
