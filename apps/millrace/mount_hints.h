// What programs tell a mount that they will read, as it comes from them (millrace/object/file/mount_hints.h).
#pragma once

#include <string>
#include <vector>

#include "millrace/base/bytes.h"
#include "millrace/base/result.h"

namespace millrace::mount {

/// The names in an argument from outside: relative, not empty, without "." and ".." components. kInvalidArgument for
/// what breaks the format; names that no file can have are refused, too.
Result<std::vector<std::string>> ParseWillOpen(ByteSpan argument);

}  // namespace millrace::mount
