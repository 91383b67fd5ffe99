// Packs the code of a job (run.source) into the job's bucket when the job starts. Each machine of the job unpacks it.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "apps/millrace/cli/cli.h"
#include "millrace/jobs/spec/spec.h"

namespace millrace::cli {

/// Returns a sentence about the folder run.source: its path, the number of files and their size. REQUIRES: run.source
/// is a folder. Errors: those of jobs::PackSource().
Result<std::string> DescribeSource(const jobs::Spec& spec);

/// Returns the folder into which PackJobSource() puts archives: "source/" below log.url. Without log.url, below
/// checkpoint.url; without both, below this machine's state folder.
Result<std::string> SourceFolder(const jobs::Spec& spec);

/// If run.source is a folder, packs it, uploads the archive to SourceFolder() unless it is there already, and replaces
/// run.source by the archive's URL. Reports this to the user. With `only_names`, sets the URL but uploads nothing.
/// Blocks on requests.
/// Errors: those of jobs::PackSource() and of the store.
Status PackJobSource(const Context& context, jobs::Spec& spec, bool only_names = false);

/// Adds the command `job unpack-source URL FOLDER`, which the launcher of each machine runs.
void AddUnpackSourceCommand(CLI::App& job, Context& context);

}  // namespace millrace::cli
