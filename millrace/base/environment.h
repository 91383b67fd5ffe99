// The variables of this process's environment.
#pragma once

#include <cstdlib>
#include <optional>
#include <string>

namespace millrace {

/// Returns the value of a variable, or nothing if it is not set. Not while another thread sets variables (setenv(3)).
inline std::optional<std::string> EnvironmentVariable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? std::optional<std::string>(value) : std::nullopt;
}

}  // namespace millrace
