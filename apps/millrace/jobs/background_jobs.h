// Starts jobs whose supervisor runs on this machine, in the background.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "apps/millrace/cli/cli.h"
#include "millrace/base/result.h"
#include "millrace/jobs/spec/spec.h"

namespace millrace::cli {

/// A supervisor that StartInBackground() has started.
struct BackgroundStart {
  std::int64_t pid = 0;
  int exit_status = 0;  ///< not 0: the supervisor has ended already, and has written the reason to standard error
};

/// Starts `millrace job run --detached` with the job. `spec` has been checked. `program` is the program of each rank;
/// empty: millrace-train. Blocks until the supervisor has locked the job's folder or has ended. Errors: kBusy if the
/// job runs already.
Result<BackgroundStart> StartInBackground(const Context& context, const jobs::Spec& spec, const std::string& program);

/// Calls StartInBackground() and prints the commands that show and stop the job. Returns 0, or the supervisor's exit
/// status if the supervisor has ended already.
Result<int> SubmitHere(const Context& context, const jobs::Spec& spec, const std::string& program);

/// Detaches this process from the terminal. StartInBackground() has started this process and returns after the call.
/// The process gets a session of its own, and its standard error goes to `log`.
Status LeaveTerminal(const std::filesystem::path& log);

}  // namespace millrace::cli
