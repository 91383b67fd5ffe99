// Files that only their owner may read: keys.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "millrace/base/result.h"

namespace millrace::http {

/// Returns the content of a file with secrets. Blocks.
/// Errors: kPermissionDenied if users other than owner and group may read the file, if others than its owner may write
/// it, or if it belongs to neither this user nor root. kInvalidArgument if it is no file or has more than `most_bytes`.
Result<std::string> ReadPrivateFile(const std::filesystem::path& file, std::uint64_t most_bytes);

}  // namespace millrace::http
