// millrace job plan: what a job needs, before anything is spent.
#pragma once

#include <string_view>
#include <vector>

#include "apps/millrace/cli/cli.h"
#include "millrace/jobs/spec.h"

namespace millrace::cli {

/// Prints the plan of a job, and with `layout: auto` the layout that was found. Reads the model's configuration from
/// the store if the job starts from a model, and the tokenizer if the job file does not say how large the vocabulary
/// is; otherwise nothing outside this machine. Returns the exit status: kExitFailed if the job does not fit the memory.
Result<int> PlanJob(const Context& context, const jobs::Spec& spec);

/// Returns the names of the machines that are known without a file.
std::vector<std::string_view> PlanMachines();

}  // namespace millrace::cli
