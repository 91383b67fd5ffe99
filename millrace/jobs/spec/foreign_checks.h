// Checks of a job whose ranks run a program of the user's own.
#pragma once

#include "millrace/base/config.h"
#include "millrace/base/result.h"
#include "millrace/jobs/spec/spec.h"

namespace millrace::jobs {

/// Checks what was read from `run.env`. `node` is `run`.
Status CheckEnvironment(const config::Node& node, const RunSpec& run);

/// Checks what only such a job has: its folders. `root` is the whole document; messages name the place in it.
Status CheckForeign(const config::Node& root, const Spec& spec, SpecPurpose purpose);

}  // namespace millrace::jobs
