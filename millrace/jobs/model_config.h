// From a job file to a model's configuration.
#pragma once

#include "millrace/base/json.h"
#include "millrace/jobs/spec.h"

namespace millrace::jobs {

/// Returns the config.json of the model that model.config describes, with the keys of Hugging Face. vocab_size is 0 if
/// the job file leaves it to the tokenizer.
Json ModelConfigOf(const Spec& spec);

/// Sets the heads that train.objective gives a BERT, whatever the configuration says. The trainer does the same
/// (engine::SetHeads); this one is for programs without libtorch.
void SetHeads(Json& config, const Spec& spec);

}  // namespace millrace::jobs
