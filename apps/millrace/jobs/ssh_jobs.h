// Jobs whose ranks run on machines that are reached by ssh.
#pragma once

#include <memory>
#include <string>

#include "apps/millrace/cli/cli.h"
#include "millrace/base/result.h"
#include "millrace/jobs/remote/remote_launcher.h"
#include "millrace/jobs/spec/spec.h"
#include "millrace/jobs/state.h"

namespace millrace::cli {

/// Returns a launcher for the hosts of `spec`. `program` is that of a rank; empty: millrace-train beside millrace on
/// each host. Nothing is started yet. REQUIRES: run.launcher is ssh.
Result<std::unique_ptr<jobs::Launcher>> LaunchOverSsh(const Context& context, const jobs::Spec& spec,
                                                      const std::string& program, const jobs::JobFolder& folder,
                                                      decltype(jobs::RemoteLauncher::Options::on_line) on_line);

}  // namespace millrace::cli
