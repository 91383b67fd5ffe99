// Checks the constraints between the keys of a job file.
#pragma once

#include "millrace/base/config.h"
#include "millrace/base/result.h"
#include "millrace/jobs/spec/spec.h"

namespace millrace::jobs {

/// Checks a Spec that was read from the document with this root, and completes train.micro_batch. Messages name the
/// place in the document.
Status CheckSpec(const config::Node& root, Spec& spec, SpecPurpose purpose);

}  // namespace millrace::jobs
