// Names of processes in shared records, such as the holder of a lease.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace millrace {

/// Returns the unique name of this process: `BOOT-ID:PID-NAMESPACE:PID:START-TIME`. No other process ever has it.
std::string ProcessName();

/// Returns whether the process of that name is alive. Returns nothing if that cannot be known here: the process belongs
/// to another host, another boot or another process namespace (a container). Callers that get nothing must rely on a
/// lease that expires.
std::optional<bool> IsProcessAlive(std::string_view name);

}  // namespace millrace
