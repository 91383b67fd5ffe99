// Translates a job file into the options of a training run.
#pragma once

#include "millrace/base/result.h"
#include "millrace/jobs/spec/spec.h"
#include "millrace/train/options.h"

namespace millrace {

/// Returns the options of a training run. Errors: kUnsupported if the job file asks for something that this program
/// cannot do.
Result<train::Options> OptionsOf(const jobs::Spec& spec);

}  // namespace millrace
