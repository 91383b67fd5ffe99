// Jobs whose supervisor runs on this machine, in the background.
#pragma once

#include <filesystem>
#include <string>

#include "apps/millrace/cli/cli.h"
#include "millrace/base/result.h"
#include "millrace/jobs/spec/spec.h"

namespace millrace::cli {

/// Starts `millrace job run --detached` with the job, and prints what to type next. `spec` has been checked; `program`
/// is that of a rank, or empty. Blocks until the supervisor has taken the job's folder. Returns its exit status if it
/// ends before; its messages are on standard error then. Errors: kBusy if the job runs already.
Result<int> SubmitHere(const Context& context, const jobs::Spec& spec, const std::string& program);

/// Makes this process, which SubmitHere() started, independent of the terminal: it gets a session of its own, its
/// standard error goes to `log`, and SubmitHere() goes on.
Status LeaveTerminal(const std::filesystem::path& log);

}  // namespace millrace::cli
