// The file of the running program.
#pragma once

#include <filesystem>

#include "millrace/base/result.h"

namespace millrace {

/// Returns the file that starts this program again. Its siblings are beside it. Where a dynamic linker was started with
/// the program as its argument (tools/release/launch.cc), returns argv[0], which the launcher sets to its own path; the
/// kernel knows only the linker. Errors: kIo without /proc.
Result<std::filesystem::path> ProgramPath();

}  // namespace millrace
