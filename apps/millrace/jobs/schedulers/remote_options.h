// The options that all launchers over several machines share.
#pragma once

#include <map>
#include <string>

#include "apps/millrace/cli/cli.h"
#include "millrace/jobs/launchers/remote_launcher.h"
#include "millrace/jobs/spec/spec.h"

namespace millrace::cli {

/// Returns the variables of every rank: those of run.env, what the flags of this command say of the store, and a random
/// MILLRACE_RUN, which identifies this start of the job.
std::map<std::string, std::string> RankEnvironment(const Context& context, const jobs::Spec& spec);

/// Fills in what follows from the job: how many nodes and ranks, the job file, the environment, the health checks.
/// Leaves out the nodes that the job cannot use. REQUIRES: options.nodes is set.
/// Errors: kPreconditionFailed if there are too few nodes.
Status FillRemoteOptions(const Context& context, const jobs::Spec& spec, jobs::RemoteLauncher::Options& options);

}  // namespace millrace::cli
