// The names of the checks of a machine.
#pragma once

#include <string_view>

namespace millrace::jobs {

/// In the order of reports.
inline constexpr std::string_view kHealthChecks[] = {"clock", "disk", "memory", "network", "cpu", "shm", "gpu"};

}  // namespace millrace::jobs
