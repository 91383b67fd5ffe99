// --share: the part of a command's work that this process does.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "millrace/base/process/work_share.h"

namespace millrace::cli {

/// Adds the flag.
void AddShareFlag(CLI::App& command, std::string& share);
/// Reads its value: "" is all, "auto" is by RANK and WORLD_SIZE, as the ranks of a job have them.
/// Errors: kInvalidArgument.
Result<WorkShare> ReadShare(const std::string& share);

}  // namespace millrace::cli
