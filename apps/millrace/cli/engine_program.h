// Runs commands of millrace-train, which has libtorch, and returns their answers.
#pragma once

#include <string>
#include <vector>

#include "apps/millrace/cli/cli.h"

namespace millrace::cli {

/// Runs `millrace-train ARGUMENTS...`, a command that prints one JSON object, and returns that object. Blocks.
/// Errors: kUnsupported if that program is not installed; kCancelled if the user stops it; kUnavailable, with the
/// object's `error`, if there is one; kInternal if the program fails otherwise.
Result<Json> AskEngine(const Context& context, std::vector<std::string> arguments);

}  // namespace millrace::cli
