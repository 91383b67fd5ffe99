// Comparison of secrets in constant time, against timing attacks.
#pragma once

#include <string_view>

namespace millrace {

/// Returns whether two secrets are equal. The time does not depend on where they differ.
bool ConstantTimeEqual(std::string_view a, std::string_view b);

}  // namespace millrace
