// Jobs whose supervisor runs on this machine, in the background.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "apps/millrace/cli/cli.h"
#include "millrace/base/result.h"
#include "millrace/jobs/spec/spec.h"

namespace millrace::cli {

/// A supervisor that was started in the background.
struct BackgroundStart {
  std::int64_t pid = 0;
  int exit_status = 0;  ///< not 0: it ended at once, and has said why on standard error
};

/// Starts `millrace job run --detached` with the job. `spec` has been checked; `program` is that of a rank, or empty.
/// Blocks until the supervisor has taken the job's folder or has ended. Errors: kBusy if the job runs already.
Result<BackgroundStart> StartInBackground(const Context& context, const jobs::Spec& spec, const std::string& program);

/// Calls StartInBackground() and prints what to type next. Returns the supervisor's exit status if it ended at once.
Result<int> SubmitHere(const Context& context, const jobs::Spec& spec, const std::string& program);

/// Makes this process, which StartInBackground() started, independent of the terminal: it gets a session of its own,
/// its standard error goes to `log`, and StartInBackground() returns.
Status LeaveTerminal(const std::filesystem::path& log);

}  // namespace millrace::cli
