// run.source: the code of a job goes into its bucket when it starts, and comes out on each machine.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "apps/millrace/cli/cli.h"
#include "millrace/jobs/spec/spec.h"

namespace millrace::cli {

/// Returns what run.source has, for people. REQUIRES: it is a folder. Errors: those of jobs::PackSource().
Result<std::string> DescribeSource(const jobs::Spec& spec);

/// Where PackJobSource() puts archives: "source/" in the folder of log.url, else of checkpoint.url, else of the state
/// folder of this machine.
Result<std::string> SourceFolder(const jobs::Spec& spec);

/// If run.source is a folder, packs it, puts the archive into SourceFolder() unless it is there, and replaces
/// run.source by its URL. Says so. With `only_names`, puts nothing. Blocks on requests.
/// Errors: those of jobs::PackSource() and of the store.
Status PackJobSource(const Context& context, jobs::Spec& spec, bool only_names = false);

/// `job unpack-source URL FOLDER`, for the launcher of each machine.
void AddUnpackSourceCommand(CLI::App& job, Context& context);

}  // namespace millrace::cli
