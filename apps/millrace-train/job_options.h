// From a job file to a training run's options.
#pragma once

#include "millrace/base/result.h"
#include "millrace/jobs/spec.h"
#include "millrace/train/options.h"

namespace millrace {

/// Fails with kUnsupported on what the job file can say and this program cannot do.
Result<train::Options> OptionsOf(const jobs::Spec& spec);

}  // namespace millrace
