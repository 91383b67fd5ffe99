// The plan of a sweep, read from its command line: the runs and their job files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "apps/millrace/cli/cli.h"
#include "millrace/jobs/spec/spec.h"
#include "millrace/jobs/sweep/early_stopping.h"
#include "millrace/jobs/sweep/sweep_state.h"

namespace millrace::cli {

/// Arguments of `job sweep`.
struct SweepArguments {
  std::string file, name;  ///< empty name: the job's
  std::vector<std::string> assignments, varied;
  std::optional<std::size_t> random;  ///< how many runs to draw; nothing: a grid
  std::uint64_t seed = 1;
  int at_once = 1;
  std::string metric, mode = "min", early_stop = "none";
  std::uint64_t min_steps = 0;
  int factor = 3;
  std::string program;  ///< of a rank, as JobArguments::program
  bool no_check = false;
};

/// The runs of a sweep and how they are compared. Plain data.
struct SweepPlan {
  jobs::SweepState state;         ///< all runs wait
  std::vector<jobs::Spec> specs;  ///< of the runs, with names and folders of their own
  jobs::StoppingOptions stopping;
};

/// Reads the job file and makes the runs. Starts nothing.
/// Errors: kInvalidArgument for values that the job file refuses (the message names them), for folders or ports that
/// runs at the same time would share, and for a metric that cannot be read.
Result<SweepPlan> PlanSweep(const SweepArguments& arguments);

}  // namespace millrace::cli
