// millrace job compile --list and --prune: the compiled steps in a cache.
#pragma once

#include <string>

#include "apps/millrace/cli/cli.h"
#include "millrace/base/clock.h"

namespace millrace::cli {

/// Prints the compiled steps of a cache. An empty `url` is the user's own cache. Returns the exit status.
Result<int> ListCompiled(const Context& context, const std::string& url);

/// Deletes the compiled steps that are damaged or older than `age`, and says which. With --dry-run it only says so.
Result<int> PruneCompiled(const Context& context, const std::string& url, Duration age);

}  // namespace millrace::cli
