// What must hold between the keys of `run`.
#pragma once

#include "millrace/base/config.h"
#include "millrace/base/result.h"
#include "millrace/jobs/spec/spec.h"

namespace millrace::jobs {

/// Checks what was read from the node `run`. Messages name the place in the document.
Status CheckRun(const config::Node& node, const RunSpec& run, SpecPurpose purpose);

}  // namespace millrace::jobs
