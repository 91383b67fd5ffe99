// Errors with formatted messages, for the code of Millrace itself. Programs that use its libraries include error.h,
// which needs no {fmt}.
#pragma once

#include <fmt/format.h>

#include <expected>
#include <utility>

#include "millrace/base/error.h"

namespace millrace {

/// `return Fail(Code::kNotFound, "no object {}", key);`
template <class... Args>
[[nodiscard]] std::unexpected<Error> Fail(Code code, fmt::format_string<Args...> format, Args&&... args) {
  return std::unexpected(Error(code, fmt::format(format, std::forward<Args>(args)...)));
}

}  // namespace millrace
