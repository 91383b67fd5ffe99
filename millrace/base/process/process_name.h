// Names of processes that are written into shared records: who holds a lease, who works on something.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace millrace {

/// Names this process as no other one has been or will be named: `BOOT-ID:PID-NAMESPACE:PID:START-TIME`.
std::string ProcessName();

/// Returns whether the process of that name is alive. Returns nothing where that cannot be known here: the process is
/// of another host or another boot, or of another process namespace (a container), where the same number is another
/// process. Who gets nothing must rely on a lease that expires.
std::optional<bool> IsProcessAlive(std::string_view name);

}  // namespace millrace
