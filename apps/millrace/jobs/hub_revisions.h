// The revisions of the hub that a job reads.
#pragma once

#include "apps/millrace/cli/cli.h"
#include "millrace/jobs/spec/spec.h"

namespace millrace::cli {

/// Replaces the branches and tags in the hf:// URLs that a job reads from by the commits that they are now, so that all
/// ranks and all attempts read the same files. Says so for each. Blocks on requests to the hub if there are such URLs.
/// Errors: those of reading there.
Status PinHubRevisions(const Context& context, jobs::Spec& spec);

}  // namespace millrace::cli
