// `millrace job plan`: predicts what a job needs. `millrace job machine`: describes this machine for plans.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "apps/millrace/cli/cli.h"
#include "millrace/base/json.h"
#include "millrace/jobs/spec/spec.h"

namespace millrace::cli {

/// Prints the plan of a job, and with `layout: auto` the layout that was found. Reads the model's configuration from
/// the store if the job starts from a model, and the tokenizer if the job file does not say how large the vocabulary
/// is; otherwise nothing outside this machine. Returns the exit status: kExitFailed if the job does not fit the memory.
Result<int> PlanJob(const Context& context, const jobs::Spec& spec);

/// Returns the config.json of the model at a URL. Blocks. Errors: kNotFound if the model has none.
Result<Json> StoredModelConfig(const Context& context, const std::string& url);

/// A batch with which a job fills its memory, and what a plan says of it.
struct LargestBatch {
  int micro_batch = 1, global_batch = 1;
  double bytes = 0, limit = 0;  ///< of a rank: what it needs, what it may use
};
/// Returns the largest micro-batch, at most `most`, whose plan fits. The global batch stays where it is a multiple of
/// what all ranks do at once, and otherwise becomes the nearest smaller multiple, or one. Reads what PlanJob reads.
/// Errors: kResourceExhausted if not even one sequence fits; kInvalidArgument if the planner chooses the layout.
Result<LargestBatch> FindLargestBatch(const Context& context, const jobs::Spec& spec, int most);

/// The memory that a rank of a job needs by its plan, and the memory that it may use, in bytes.
struct MemoryForecast {
  double bytes = 0, limit = 0;
  bool fits = true;
};
/// Reads what PlanJob reads. With `layout: auto`, of the best layout. Errors: those of the plan.
Result<MemoryForecast> ForecastMemory(const Context& context, const jobs::Spec& spec);

/// Measures this machine for some seconds, and prints its description in the form of docs/machines, or its figures as
/// JSON. Returns the exit status. Errors: those of AskEngine.
Result<int> DescribeMachine(const Context& context);

/// Returns the names of the machines that are known without a file.
std::vector<std::string_view> PlanMachines();

}  // namespace millrace::cli
