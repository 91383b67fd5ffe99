// Going into the background: the command waits until the mount is live, and reports errors until then.
#pragma once

#include <memory>
#include <stop_token>
#include <string>
#include <vector>

#include "millrace/base/files/files.h"
#include "millrace/base/log.h"
#include "millrace/base/result.h"

namespace millrace::mount {

/// Starts this program again in a session of its own, with `arguments` and `--status-fd N`. Blocks until the daemon
/// reports that it is live (BecomeDaemon) or ends. Returns the exit status for this process. The daemon prints its
/// messages on the same standard error. If `stop` fires first, sends SIGTERM to the daemon. Errors:
/// kInternal if the daemon ends with status 0 before it is live; those of fork(2) and pipe(2).
Result<int> StartDaemon(const std::vector<std::string>& arguments, std::stop_token stop);

/// Called by the daemon once it is live. Reports that through `status`, and leaves the terminal and the working
/// directory: standard output and error go to `log_file`, or nowhere if that is empty.
Status BecomeDaemon(UniqueFd status, const std::string& log_file);

/// Returns a sink for the system log, for daemons without a log file.
std::shared_ptr<LogSink> MakeSystemLog();

}  // namespace millrace::mount
