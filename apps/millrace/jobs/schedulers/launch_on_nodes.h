// Jobs whose supervisor runs on a machine that a scheduler gave it (Slurm's first node, the first pod), and jobs whose
// ranks have agents on this machine.
#pragma once

#include <memory>
#include <string>

#include "apps/millrace/cli/cli.h"
#include "millrace/base/result.h"
#include "millrace/jobs/launchers/remote_launcher.h"
#include "millrace/jobs/spec/spec.h"
#include "millrace/jobs/state.h"

namespace millrace::cli {

/// Returns a launcher for the nodes of the allocation, or the pods of the job, that this process is in. `program` is
/// that of a rank; empty: millrace-train beside millrace. Nothing is started yet.
/// Errors: kPreconditionFailed if there are fewer nodes than run.nodes, or no allocation.
/// REQUIRES: run.launcher is slurm, kubernetes or jobset.
Result<std::unique_ptr<jobs::Launcher>> LaunchOnNodes(const Context& context, const jobs::Spec& spec,
                                                      const std::string& program, const jobs::JobFolder& folder,
                                                      decltype(jobs::RemoteLauncher::Options::on_line) on_line);

/// Returns the launcher of an elastic job on this machine: each rank has an agent of its own, so that the job can go on
/// without some. REQUIRES: spec.run.elastic and launcher local.
Result<std::unique_ptr<jobs::Launcher>> LaunchInParts(const Context& context, const jobs::Spec& spec,
                                                      const std::string& program, const jobs::JobFolder& folder,
                                                      decltype(jobs::RemoteLauncher::Options::on_line) on_line);

}  // namespace millrace::cli
