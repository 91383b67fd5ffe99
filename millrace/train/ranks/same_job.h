// Checks that all ranks of a run were started with the same job.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/result.h"
#include "millrace/engine/parallel/collective.h"

namespace millrace::train {

/// Returns the keys that two rendered job files (jobs::Spec::Render) do not share, sorted: "train.optimizer",
/// "data.sources". Leaves out what may differ from machine to machine, and changes no number: `run`, `log`,
/// `checkpoint.local`, `data.cache`, `data.index_cache`, and `threads`.
std::vector<std::string> DifferentKeys(std::string_view one, std::string_view other);

/// Compares the job of each rank with that of rank 0. All ranks call it, with their own rendered job file. Blocks.
/// Errors: kInvalidArgument on all ranks if a rank has another job. It names the first such rank and the keys.
Status CheckSameJob(engine::Collective& group, std::string job);

}  // namespace millrace::train
