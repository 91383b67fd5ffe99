// Runs a job for `job run`: the checks, the supervisor, and every consumer of the supervisor's events.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "apps/millrace/cli/cli.h"
#include "millrace/base/result.h"
#include "millrace/jobs/launchers/local_launcher.h"
#include "millrace/jobs/spec/spec.h"

namespace millrace::cli {

/// Arguments of the commands that take a job file.
struct JobArguments {
  std::string file;
  std::vector<std::string> assignments;
  std::string program;  ///< of a rank; empty: millrace-train beside this one
  bool no_check = false;
  bool takes_over = false;  ///< end the run that saves to the same checkpoint.url
  bool detached = false;    ///< started by `job submit`: nobody reads the output
  std::string machine;      ///< of a plan; empty: the job file's
  bool compiles = false;    ///< the ranks end when their step is compiled
  /// With the launcher sagemaker: which ranks of the job are this machine's.
  std::optional<jobs::LocalLauncher::RankPlacement> place;
  std::map<std::string, std::string> env;  ///< of this machine's ranks, beside the job's
  bool in_pod = false;                     ///< standard output becomes a pod's log, for `job submit` elsewhere
};

Result<jobs::Spec> ReadSpec(const JobArguments& arguments, jobs::SpecPurpose purpose = jobs::SpecPurpose::kRun);

/// Prints what the checks find (--dry-run). Returns the exit status.
Result<int> ShowChecks(const Context& context, const jobs::Spec& spec, const JobArguments& arguments);
/// Runs the checks. Returns one error that lists all failures; prints warnings.
Status CheckBeforeStart(const Context& context, const jobs::Spec& spec, const JobArguments& arguments);

/// Ends the run that owns the job's checkpoint.url, if arguments.takes_over says so, and prints whose it was. Blocks.
/// Errors: kInvalidArgument if the job has no checkpoint.url, or runs a program of its own; those of the store.
Status TakeOverIfAsked(const Context& context, const jobs::Spec& spec, const JobArguments& arguments);

/// Starts the ranks of a job and watches them until it ends. Returns the exit status of this process. Blocks.
/// Errors: kBusy if the job runs already; those of the checks, the job's folder and the launcher.
Result<int> RunJob(const Context& context, const JobArguments& arguments);

}  // namespace millrace::cli
