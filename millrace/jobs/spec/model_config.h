// Reads the configuration of a job file's model.
#pragma once

#include "millrace/base/json.h"
#include "millrace/jobs/spec/spec.h"

namespace millrace::jobs {

/// Returns the config.json of the model that model.config describes, with the keys of Hugging Face. vocab_size is 0 if
/// the job file leaves it to the tokenizer.
/// REQUIRES: the family is known (engine::FindFamily).
Json ModelConfigOf(const Spec& spec);

}  // namespace millrace::jobs
