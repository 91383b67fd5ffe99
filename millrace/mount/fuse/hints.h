// Parsing of read hints, by which programs announce the files that they will open
// (millrace/object/local/mount_hints.h).
#pragma once

#include <string>
#include <vector>

#include "millrace/base/bytes.h"
#include "millrace/base/result.h"

namespace millrace::mount {

/// Returns the file names in the argument of a kWillOpenRequest, which comes from outside and may be malformed. The
/// names are relative, not empty, and without "." and ".." components. Errors: kInvalidArgument if the argument breaks
/// the format or a name is one that no file can have.
Result<std::vector<std::string>> ParseWillOpen(ByteSpan argument);

}  // namespace millrace::mount
