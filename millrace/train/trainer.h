// The training loop: data, model, optimizer, checkpoints and reports, on one rank of a data-parallel job.
#pragma once

#include <stop_token>
#include <vector>

#include "millrace/base/result.h"
#include "millrace/engine/parallel/collective.h"
#include "millrace/object/connection.h"
#include "millrace/train/options.h"
#include "millrace/train/reporting/run_observer.h"

namespace millrace::train {

/// Runs a job. If `checkpoint_url` has a committed checkpoint, the run resumes from the newest one. With the same
/// number of ranks and threads, its losses are then bit for bit those of a run that did not stop. Every rank calls it
/// with the same options. Blocks until the last step is done and its checkpoint is committed.
///
/// On rank 0, the run tells `observers` of its events, beside those that the options ask for. Other ranks ignore them.
///
/// If `stop` fires on any rank, all ranks finish their step, save a checkpoint and return with RunOutcome::stopped.
/// REQUIRES: `connection`, `group` and the observers outlive the call.
/// Errors: kUnavailable if another rank is lost; kInternal if the loss is not finite (nothing of that step is kept);
/// those of data and checkpoints; those of addresses and trackers that cannot be opened before the first step.
Result<RunOutcome> Train(object::Connection& connection, engine::Collective& group, const Options& options,
                         const std::vector<RunObserver*>& observers, std::stop_token stop);

}  // namespace millrace::train
