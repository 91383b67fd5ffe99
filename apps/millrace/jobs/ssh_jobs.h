// Runs jobs on machines that ssh reaches.
#pragma once

#include <memory>
#include <string>

#include "apps/millrace/cli/cli.h"
#include "millrace/base/result.h"
#include "millrace/jobs/launchers/remote_launcher.h"
#include "millrace/jobs/spec/spec.h"
#include "millrace/jobs/state.h"

namespace millrace::cli {

/// Returns a launcher for the hosts of `spec`. Starts nothing yet. `program` is the program of each rank; empty: the
/// millrace-train beside millrace on each host. REQUIRES: run.launcher is ssh.
Result<std::unique_ptr<jobs::Launcher>> LaunchOverSsh(const Context& context, const jobs::Spec& spec,
                                                      const std::string& program, const jobs::JobFolder& folder,
                                                      decltype(jobs::RemoteLauncher::Options::on_line) on_line);

}  // namespace millrace::cli
