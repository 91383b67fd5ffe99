// Starting `millrace mount` and waiting until its mount answers.
#pragma once

#include <filesystem>
#include <stop_token>

#include "millrace/base/clock.h"
#include "millrace/base/process/subprocess.h"
#include "millrace/base/result.h"

namespace millrace::csi {

/// Starts the daemon and returns its process as soon as it reports that the mount is live (--status-fd, which this
/// adds). `log` is the file that the options send its messages to. Errors: what the daemon logged, if it ended;
/// kDeadlineExceeded if it is not live in time; kCancelled if `stop` fires. It is then killed.
Result<Subprocess> StartMountDaemon(Subprocess::Options options, const std::filesystem::path& log, Duration timeout,
                                    const std::stop_token& stop);

}  // namespace millrace::csi
