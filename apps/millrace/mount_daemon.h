// Going into the background: the command waits until the mount is live, and reports what went wrong otherwise.
#pragma once

#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/files/files.h"
#include "millrace/base/log.h"
#include "millrace/base/result.h"

namespace millrace::mount {

/// Starts this program again with `arguments` and `--status-fd N` in a session of its own, and waits until it says that
/// it is live or ends. Gives the exit status for this process; what the daemon printed has then been shown. When `stop`
/// fires first, the daemon is told to end.
Result<int> StartDaemon(const std::vector<std::string>& arguments, std::stop_token stop);

/// The daemon's side. Says that all is well, leaves the terminal (standard output and error go to `log_file`, or
/// nowhere) and the working directory.
Status BecomeDaemon(UniqueFd status, const std::string& log_file);

/// Log lines in the system's log, for daemons without a file of their own.
std::shared_ptr<LogSink> MakeSystemLog();

}  // namespace millrace::mount
