// millrace job machine: a description of this machine for plans, measured.
#pragma once

#include "apps/millrace/cli/cli.h"

namespace millrace::cli {

/// Measures this machine for some seconds, and prints its description in the form of docs/machines, or its figures as
/// JSON. Returns the exit status. Errors: those of AskEngine.
Result<int> DescribeMachine(const Context& context);

}  // namespace millrace::cli
