// The names of the checks of a machine.
#pragma once

#include <iterator>
#include <string>
#include <string_view>
#include <vector>

namespace millrace::jobs {

/// In the order of reports.
inline constexpr std::string_view kHealthChecks[] = {"clock", "disk", "memory", "network", "cpu", "shm", "gpu"};

inline std::vector<std::string> AllHealthChecks() { return {std::begin(kHealthChecks), std::end(kHealthChecks)}; }

}  // namespace millrace::jobs
