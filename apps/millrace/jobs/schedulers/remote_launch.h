// Launchers over several machines, whose agents start the ranks: of Slurm, of pods, over ssh, and of elastic jobs here.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "apps/millrace/cli/cli.h"
#include "millrace/base/result.h"
#include "millrace/jobs/launchers/remote_launcher.h"
#include "millrace/jobs/spec/spec.h"
#include "millrace/jobs/state.h"

namespace millrace::cli {

/// Returns the variables of every rank: those of run.env, what the flags of this command say of the store, and a random
/// MILLRACE_RUN, which identifies this start of the job.
std::map<std::string, std::string> RankEnvironment(const Context& context, const jobs::Spec& spec);

/// Returns a launcher for the machines of a job: the hosts of ssh, the nodes of the allocation or the pods of the job
/// that this process is in. With the launcher local, each rank has an agent of its own on this machine, so that the job
/// can go on without some. Nothing is started yet. `program` is that of a rank; empty: millrace-train beside the
/// machine's millrace.
/// Errors: kPreconditionFailed if there are fewer nodes than the job needs, or no allocation.
/// REQUIRES: run.launcher is ssh, slurm, kubernetes, jobset or mpijob, or local with run.elastic.
Result<std::unique_ptr<jobs::Launcher>> LaunchRemotely(const Context& context, const jobs::Spec& spec,
                                                       const std::string& program, const jobs::JobFolder& folder,
                                                       decltype(jobs::RemoteLauncher::Options::on_line) on_line);

}  // namespace millrace::cli
