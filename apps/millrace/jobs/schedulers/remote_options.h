// What the launchers of several machines have in common.
#pragma once

#include "apps/millrace/cli/cli.h"
#include "millrace/jobs/remote/remote_launcher.h"
#include "millrace/jobs/spec/spec.h"

namespace millrace::cli {

/// Fills in what follows from the job: how many nodes and ranks, the job file, the environment, the health checks.
/// Leaves out the nodes that the job cannot use. REQUIRES: options.nodes is set.
/// Errors: kPreconditionFailed if there are too few nodes.
Status FillRemoteOptions(const Context& context, const jobs::Spec& spec, jobs::RemoteLauncher::Options& options);

}  // namespace millrace::cli
